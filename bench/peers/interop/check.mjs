// Drives a server, or the members of a list, with the npm package etcd3, a third-party client.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { Etcd3 } = createRequire(process.cwd() + '/')('etcd3');
const [client, other] = [1, 2].map(() => new Etcd3({ hosts: process.argv[2].split(',') }));
setTimeout(() => { throw new Error('something hangs'); }, 60_000).unref();

await client.put('js/1').value('one');
assert.equal(await client.get('js/1').string(), 'one');
assert.deepEqual(await client.getAll().prefix('js/').strings(), { 'js/1': 'one' });

const watcher = await client.watch().prefix('js/').withPreviousKV().create();
const heard = [];
const three = new Promise((resolve) => {
  const hear = (kind) => (kv, previous) => {
    heard.push([kind, kv.key.toString(), previous?.value.toString()]);
    if (heard.length === 3) resolve();
  };
  watcher.on('put', hear('put'));
  watcher.on('delete', hear('delete'));
});
await other.put('js/2').value('two');
await other.put('js/1').value('uno');
await other.delete().key('js/2');
await three;
assert.deepEqual(heard, [['put', 'js/2', undefined], ['put', 'js/1', 'one'], ['delete', 'js/2', 'two']]);
await watcher.cancel();

const revision = Number((await client.get('js/1').exec()).kvs[0].mod_revision);
const past = await client.watch().key('js/1').startRevision(String(revision)).create();
const [again] = await new Promise((resolve) => past.on('put', (...event) => resolve(event)));
assert.equal(again.value.toString(), 'uno');
await past.cancel();

const lease = client.lease(30);
await lease.put('js/leased').value('');
assert.equal(await client.get('js/leased').exists(), true);
await lease.keepaliveOnce();
await lease.revoke();
assert.equal(await client.get('js/leased').exists(), false);

await client.lock('js').ttl(30).do(async () => {
  await assert.rejects(other.lock('js').ttl(30).acquire(), /lock/i);
});
const held = await other.lock('js').ttl(30).acquire();
await held.release();

const election = client.election('js-election', 30);
const campaign = election.campaign('me');
await new Promise((resolve, reject) => campaign.on('elected', resolve).on('error', reject));
assert.equal(await other.election('js-election', 30).leader(), 'me');
await campaign.resign();

await other.stm().transact((tx) => tx.get('js/1').string().then((value) => tx.put('js/1').value(value + '!')));
assert.equal(await client.get('js/1').string(), 'uno!');
client.close();
other.close();
console.log('all checks passed');

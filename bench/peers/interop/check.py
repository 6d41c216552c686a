"""Drives a server, or the first and the last member of a list, with the PyPI package etcd3, a third-party client."""

import sys
import threading

import etcd3



def connect(endpoint):
    host, port = endpoint.removeprefix("http://").split(":")
    return etcd3.client(host, int(port), timeout=20)


endpoints = sys.argv[1].split(",")
client, other = connect(endpoints[0]), connect(endpoints[-1])
assert len(list(client.members)) == len(endpoints)

client.put("py/1", "one")
assert client.get("py/1")[0] == b"one"
assert client.replace("py/1", "one", "uno") and not client.replace("py/1", "one", "eins")

events, cancel = client.watch_prefix("py/")
other.put("py/2", "two")
other.delete("py/1")
first, second = next(events), next(events)
assert (first.key, first.value, type(first)) == (b"py/2", b"two", etcd3.events.PutEvent)
assert (second.key, type(second)) == (b"py/1", etcd3.events.DeleteEvent)
cancel()

heard = threading.Event()
watch_id = client.add_watch_callback("py/3", lambda response: heard.set())
other.put("py/3", "three")
assert heard.wait(20), "the callback was not called"
client.cancel_watch(watch_id)

revision = client.get("py/3")[1].mod_revision
past, cancel = client.watch_prefix("py/", start_revision=revision - 1)
assert (next(past).key, next(past).key) == (b"py/1", b"py/3")
cancel()

lease = client.lease(60)
client.put("py/leased", "", lease)
assert lease.remaining_ttl > 50 and lease.granted_ttl == 60 and lease.keys == [b"py/leased"]
assert list(lease.refresh())[0].TTL == 60
lease.revoke()
assert client.get("py/leased")[0] is None

with client.lock("py", ttl=30) as lock:
    assert lock.is_acquired()
    assert other.get(lock.key)[1].lease_id == lock.lease.id
# (Waiting for a lock fails in this package itself, with any version of its dependency tenacity that it accepts.)
assert other.lock("py", ttl=30).acquire(timeout=20)

done, replies = client.transaction(
    compare=[client.transactions.value("py/2") == "two"],
    success=[client.transactions.put("py/2", "zwei"), client.transactions.get("py/2")],
    failure=[],
)
assert done and replies[1][0][0] == b"zwei"
print("all checks passed")

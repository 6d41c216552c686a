import static java.nio.charset.StandardCharsets.UTF_8;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.Watch;
import io.etcd.jetcd.lease.LeaseKeepAliveResponse;
import io.etcd.jetcd.op.Cmp;
import io.etcd.jetcd.op.CmpTarget;
import io.etcd.jetcd.op.Op;
import io.etcd.jetcd.options.GetOption;
import io.etcd.jetcd.options.LeaseOption;
import io.etcd.jetcd.options.PutOption;
import io.etcd.jetcd.options.WatchOption;
import io.etcd.jetcd.watch.WatchEvent;
import io.grpc.stub.StreamObserver;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Drives a server with jetcd, a third-party client over grpc-java. */
public final class Check {
    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, UTF_8);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    public static void main(String[] args) throws Exception {
        var endpoints = args[0].split(",");
        try (Client client = Client.builder().endpoints(endpoints).build();
                Client other = Client.builder().endpoints(endpoints).build()) {
            keys(client);
            watches(client, other);
            leases(client);
            locksAndElections(client, other);
            check(client.getMaintenanceClient().statusMember(endpoints[0]).get().getVersion().startsWith("3."), "status");
            check(client.getClusterClient().listMember().get().getMembers().size() == endpoints.length, "members");
        }
        System.out.println("all checks passed");
        System.exit(0);
    }

    private static void keys(Client client) throws Exception {
        var kv = client.getKVClient();
        for (int at = 0; at < 1000; at++) {
            kv.put(bytes("java/" + at), bytes("v" + at)).get();
        }
        var page = GetOption.builder().isPrefix(true).withLimit(10).withSortOrder(GetOption.SortOrder.DESCEND).build();
        var got = kv.get(bytes("java/"), page).get();
        check(got.getCount() == 1000 && got.getKvs().size() == 10 && got.isMore(), "a sorted page");
        check(got.getKvs().get(0).getKey().toString(UTF_8).equals("java/999"), "the last key");
        var txn = kv.txn()
                .If(new Cmp(bytes("java/1"), Cmp.Op.EQUAL, CmpTarget.value(bytes("v1"))))
                .Then(Op.put(bytes("java/1"), bytes("uno"), PutOption.builder().withPrevKV().build()),
                        Op.get(bytes("java/1"), GetOption.DEFAULT))
                .Else(Op.get(bytes("java/2"), GetOption.DEFAULT))
                .commit().get();
        check(txn.isSucceeded(), "the comparison");
        check(txn.getPutResponses().get(0).getPrevKv().getValue().toString(UTF_8).equals("v1"), "the value before");
        check(txn.getGetResponses().get(0).getKvs().get(0).getValue().toString(UTF_8).equals("uno"), "the value");
        long revision = kv.delete(bytes("java/2")).get().getHeader().getRevision();
        kv.compact(revision).get();
        try {
            kv.get(bytes("java/2"), GetOption.builder().withRevision(revision - 1).build()).get();
            check(false, "a compacted revision was read");
        } catch (java.util.concurrent.ExecutionException error) {
            check(error.getMessage().contains("required revision has been compacted"), error.getMessage());
        }
    }

    private static void watches(Client client, Client other) throws Exception {
        BlockingQueue<WatchEvent> events = new LinkedBlockingQueue<>();
        var options = WatchOption.builder().isPrefix(true).withPrevKV(true).build();
        try (Watch.Watcher ignored = client.getWatchClient().watch(bytes("java-watch/"), options,
                response -> events.addAll(response.getEvents()))) {
            // jetcd does not say when the watch stands.
            Thread.sleep(500);
            other.getKVClient().put(bytes("java-watch/1"), bytes("one")).get();
            other.getKVClient().delete(bytes("java-watch/1")).get();
            var put = events.poll(20, TimeUnit.SECONDS);
            var delete = events.poll(20, TimeUnit.SECONDS);
            check(put.getEventType() == WatchEvent.EventType.PUT, "a put is seen");
            check(delete.getEventType() == WatchEvent.EventType.DELETE, "a delete is seen");
            check(delete.getPrevKV().getValue().toString(UTF_8).equals("one"), "what was there before");
        }
    }

    private static void leases(Client client) throws Exception {
        var leases = client.getLeaseClient();
        long lease = leases.grant(30).get().getID();
        client.getKVClient()
                .put(bytes("java-leased"), bytes(""), PutOption.builder().withLeaseId(lease).build()).get();
        BlockingQueue<Long> renewed = new LinkedBlockingQueue<>();
        var keeping = leases.keepAlive(lease, new StreamObserver<LeaseKeepAliveResponse>() {
            @Override
            public void onNext(LeaseKeepAliveResponse reply) {
                renewed.add(reply.getTTL());
            }

            @Override
            public void onError(Throwable error) {}

            @Override
            public void onCompleted() {}
        });
        check(renewed.poll(20, TimeUnit.SECONDS) == 30, "kept alive");
        keeping.close();
        var left = leases.timeToLive(lease, LeaseOption.builder().withAttachedKeys().build()).get();
        check(left.getTTL() > 20 && left.getKeys().size() == 1, "its time and key");
        leases.revoke(lease).get();
        check(client.getKVClient().get(bytes("java-leased")).get().getCount() == 0, "the key went with its lease");
    }

    private static void locksAndElections(Client client, Client other) throws Exception {
        long first = client.getLeaseClient().grant(30).get().getID();
        long second = other.getLeaseClient().grant(30).get().getID();
        var held = client.getLockClient().lock(bytes("java-lock"), first).get().getKey();
        var waiting = other.getLockClient().lock(bytes("java-lock"), second);
        Thread.sleep(200);
        check(!waiting.isDone(), "a lock is held once");
        client.getLockClient().unlock(held).get();
        other.getLockClient().unlock(waiting.get(20, TimeUnit.SECONDS).getKey()).get();

        var leader = client.getElectionClient().campaign(bytes("java-election"), first, bytes("a")).get().getLeader();
        check(other.getElectionClient().leader(bytes("java-election")).get().getKv().getValue().toString(UTF_8)
                .equals("a"), "the leader");
        client.getElectionClient().resign(leader).get();
    }
}

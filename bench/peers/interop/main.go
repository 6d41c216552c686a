// Drives a server with etcd's own Go client: watches, leases, and the recipes made of them. Run against both servers, it
// has to pass for both.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"go.uber.org/zap"

	"revd/peers/expect"
)

// ctx ends when something hangs.
var ctx context.Context

func connect(endpoint string) *clientv3.Client {
	return expect.Must(clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	}))
}

func main() {
	expect.That(len(os.Args) == 2 || len(os.Args) == 5, "usage: interop <endpoint> [pings <rounds> <rounds through a proxy>]")
	limit := 2 * time.Minute
	if len(os.Args) == 5 {
		limit = time.Hour
	}
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(context.Background(), limit)
	defer cancel()
	if len(os.Args) == 5 {
		pings(os.Args[1], number(os.Args[3]), number(os.Args[4]))
		return
	}
	client, other := connect(os.Args[1]), connect(os.Args[1])
	for name, part := range map[string]func(client, other *clientv3.Client){
		"watch": watch, "past and compaction": past, "lease": lease, "mutex": mutex, "election": election,
		"stm": stm, "lock service": lockService, "election service": electionService,
		"refusals": refusals,
	} {
		part(client, other)
		fmt.Println(name + " works")
	}
	fmt.Println("all checks passed")
}

// next is the next response of a watch with events.
func next(watching clientv3.WatchChan) []*clientv3.Event {
	for response := range watching {
		expect.That(response.Err() == nil, "the watch has ended: %v", response.Err())
		if len(response.Events) > 0 {
			return response.Events
		}
	}
	panic("the watch has ended")
}

func watch(client, other *clientv3.Client) {
	created := client.Watch(ctx, "w/", clientv3.WithPrefix(), clientv3.WithPrevKV(), clientv3.WithCreatedNotify())
	expect.That((<-created).Created, "no word of the creation")
	deletions := client.Watch(ctx, "w/", clientv3.WithPrefix(), clientv3.WithFilterPut(), clientv3.WithFragment())
	one := client.Watch(ctx, "w/1")
	expect.That(len(expect.Must(client.Get(ctx, "w/", clientv3.WithPrefix())).Kvs) == 0, "not empty")
	// The other two watchers have no word of their creation: a progress request waits for them.
	expect.That(client.RequestProgress(ctx) == nil, "no progress")
	expect.Must(other.Put(ctx, "w/1", "a"))
	event := next(created)[0]
	expect.That(event.IsCreate() && string(event.Kv.Value) == "a" && event.PrevKv == nil, "%v", event)
	expect.Must(other.Put(ctx, "w/1", "b"))
	event = next(created)[0]
	expect.That(event.IsModify() && string(event.PrevKv.Value) == "a", "%v", event)
	expect.Must(other.Delete(ctx, "w/", clientv3.WithPrefix()))
	event = next(created)[0]
	expect.That(event.Type == clientv3.EventTypeDelete && string(event.PrevKv.Value) == "b", "%v", event)
	expect.That(next(deletions)[0].Type == clientv3.EventTypeDelete, "a put came through the filter")
	for _, value := range []string{"a", "b", ""} {
		expect.That(string(next(one)[0].Kv.Value) == value, "another value than %q", value)
	}
}

// refusals are of puts that are too large, many at a time: a watch on the same connection does not hear of them.
func refusals(_, other *clientv3.Client) {
	client := expect.Must(clientv3.New(clientv3.Config{
		Endpoints: other.Endpoints(), DialTimeout: 5 * time.Second, Logger: zap.NewNop(), MaxCallSendMsgSize: 1 << 30,
	}))
	one := client.Watch(ctx, "r/1", clientv3.WithCreatedNotify())
	expect.That((<-one).Created, "no word of the creation")
	value := strings.Repeat("v", 3<<20)
	refused := make(chan error)
	for range 200 {
		go func() {
			_, err := client.Put(ctx, "r/2", value)
			refused <- err
		}()
	}
	for range 200 {
		err := <-refused
		expect.That(err != nil && strings.Contains(err.Error(), "larger than max"), "%v", err)
	}
	expect.Must(other.Put(ctx, "r/1", "a"))
	expect.That(len(next(one)) == 1, "no event")
}

func past(client, other *clientv3.Client) {
	first := expect.Must(client.Put(ctx, "p/0", "0")).Header.Revision
	var last int64
	for number := 1; number <= 1000; number++ {
		last = expect.Must(client.Put(ctx, fmt.Sprintf("p/%d", number%10), fmt.Sprint(number))).Header.Revision
	}
	watching := other.Watch(ctx, "p/", clientv3.WithPrefix(), clientv3.WithRev(first))
	for number := 0; number <= 1000; {
		for _, event := range next(watching) {
			expect.That(string(event.Kv.Value) == fmt.Sprint(number), "%v is not change %d", event.Kv, number)
			number++
		}
	}
	expect.Must(client.Compact(ctx, last-100))
	response := <-client.Watch(ctx, "p/", clientv3.WithPrefix(), clientv3.WithRev(first))
	expect.That(errors.Is(response.Err(), rpctypes.ErrCompacted), "%v", response.Err())
	expect.That(response.CompactRevision == last-100, "compacted at %d", response.CompactRevision)
}

func lease(client, other *clientv3.Client) {
	granted := expect.Must(client.Grant(ctx, 60))
	expect.Must(client.Put(ctx, "l/1", "", clientv3.WithLease(granted.ID)))
	expect.Must(client.Put(ctx, "l/2", "", clientv3.WithLease(granted.ID)))
	left := expect.Must(other.TimeToLive(ctx, granted.ID, clientv3.WithAttachedKeys()))
	expect.That(left.GrantedTTL == 60 && left.TTL > 50 && len(left.Keys) == 2, "%v", left)
	expect.That(expect.Must(other.KeepAliveOnce(ctx, granted.ID)).TTL == 60, "not kept alive")
	expect.That((<-expect.Must(other.KeepAlive(ctx, granted.ID))).ID == granted.ID, "not kept alive")
	expect.That(len(expect.Must(client.Leases(ctx)).Leases) > 0, "no leases")
	expect.Must(other.Revoke(ctx, granted.ID))
	expect.That(expect.Must(client.Get(ctx, "l/", clientv3.WithPrefix())).Count == 0, "keys are left")
	_, err := client.KeepAliveOnce(ctx, granted.ID)
	expect.That(errors.Is(err, rpctypes.ErrLeaseNotFound), "%v", err)
	short := expect.Must(client.Grant(ctx, 2))
	expect.Must(client.Put(ctx, "l/3", "", clientv3.WithLease(short.ID)))
	expect.That(next(client.Watch(ctx, "l/3", clientv3.WithFilterPut()))[0].Type == clientv3.EventTypeDelete, "no end")
}

func session(client *clientv3.Client) *concurrency.Session {
	return expect.Must(concurrency.NewSession(client, concurrency.WithTTL(30)))
}

func mutex(client, other *clientv3.Client) {
	mine, theirs := session(client), session(other)
	held, waiting := concurrency.NewMutex(mine, "m"), concurrency.NewMutex(theirs, "m")
	expect.That(held.Lock(ctx) == nil, "not locked")
	expect.That(errors.Is(waiting.TryLock(ctx), concurrency.ErrLocked), "locked twice")
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	expect.That(waiting.Lock(short) != nil, "locked twice")
	cancel()
	locked := make(chan error)
	go func() { locked <- waiting.Lock(ctx) }()
	expect.That(held.Unlock(ctx) == nil, "not unlocked")
	expect.That(<-locked == nil, "nobody is next")
	// Whoever holds a lock loses it with the session.
	go func() { locked <- held.Lock(ctx) }()
	expect.That(theirs.Close() == nil, "the session does not end")
	expect.That(<-locked == nil, "the lock outlived its session")
	expect.That(mine.Close() == nil, "the session does not end")
}

func election(client, other *clientv3.Client) {
	mine, theirs := session(client), session(other)
	leads, waits := concurrency.NewElection(mine, "e"), concurrency.NewElection(theirs, "e")
	_, err := leads.Leader(ctx)
	expect.That(errors.Is(err, concurrency.ErrElectionNoLeader), "%v", err)
	observed := concurrency.NewElection(theirs, "e").Observe(ctx)
	expect.That(leads.Campaign(ctx, "one") == nil, "not elected")
	elected := make(chan error)
	go func() { elected <- waits.Campaign(ctx, "two") }()
	said := func(value string) {
		for response := range observed {
			if string(response.Kvs[0].Value) == value {
				return
			}
		}
		panic("nobody said " + value)
	}
	said("one")
	expect.That(leads.Proclaim(ctx, "more") == nil, "nothing proclaimed")
	said("more")
	expect.That(leads.Resign(ctx) == nil, "not resigned")
	expect.That(<-elected == nil, "nobody is next")
	said("two")
	expect.That(theirs.Close() == nil && mine.Close() == nil, "a session does not end")
}

func stm(client, other *clientv3.Client) {
	expect.Must(client.Put(ctx, "stm", ""))
	done := make(chan error)
	for _, who := range []*clientv3.Client{client, other} {
		go func() {
			for range 20 {
				if _, err := concurrency.NewSTM(who, func(stm concurrency.STM) error {
					stm.Put("stm", stm.Get("stm")+"x")
					return nil
				}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	expect.That(<-done == nil && <-done == nil, "a transaction failed")
	expect.That(string(expect.Must(client.Get(ctx, "stm")).Kvs[0].Value) == strings.Repeat("x", 40), "an update was lost")
}

// lockService uses the server's own locks, beside the client's on the same name.
func lockService(client, other *clientv3.Client) {
	locks := v3lockpb.NewLockClient(client.ActiveConnection())
	lease := expect.Must(client.Grant(ctx, 30))
	held := expect.Must(locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("s"), Lease: int64(lease.ID)}))
	expect.That(string(held.Key) == fmt.Sprintf("s/%x", lease.ID), "%s", held.Key)
	theirs := session(other)
	locked := make(chan error)
	go func() { locked <- concurrency.NewMutex(theirs, "s").Lock(ctx) }()
	short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	_, err := locks.Lock(short, &v3lockpb.LockRequest{Name: []byte("s")})
	expect.That(err != nil, "locked twice")
	cancel()
	expect.Must(locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: held.Key}))
	expect.That(<-locked == nil, "nobody is next")
	_, err = locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("s"), Lease: 4711})
	expect.That(err != nil && strings.Contains(err.Error(), "requested lease not found"), "%v", err)
	// The call that was given up has left nothing behind.
	for expect.Must(client.Get(ctx, "s/", clientv3.WithPrefix())).Count > 1 {
		time.Sleep(10 * time.Millisecond)
	}
	expect.That(theirs.Close() == nil, "the session does not end")
	again := expect.Must(locks.Lock(ctx, &v3lockpb.LockRequest{Name: []byte("s")}))
	expect.Must(locks.Unlock(ctx, &v3lockpb.UnlockRequest{Key: again.Key}))
}

func electionService(client, other *clientv3.Client) {
	elections := v3electionpb.NewElectionClient(client.ActiveConnection())
	_, err := elections.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("v")})
	expect.That(err != nil && strings.Contains(err.Error(), "election: no leader"), "%v", err)
	observing := expect.Must(elections.Observe(ctx, &v3electionpb.LeaderRequest{Name: []byte("v")}))
	won := expect.Must(elections.Campaign(ctx, &v3electionpb.CampaignRequest{Name: []byte("v"), Value: []byte("one")}))
	expect.That(string(expect.Must(observing.Recv()).Kv.Value) == "one", "another leader")
	theirs := session(other)
	elected := make(chan error)
	go func() { elected <- concurrency.NewElection(theirs, "v").Campaign(ctx, "two") }()
	expect.Must(elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: won.Leader, Value: []byte("more")}))
	expect.That(string(expect.Must(observing.Recv()).Kv.Value) == "more", "another value")
	expect.Must(elections.Resign(ctx, &v3electionpb.ResignRequest{Leader: won.Leader}))
	expect.That(<-elected == nil, "nobody is next")
	expect.That(string(expect.Must(observing.Recv()).Kv.Value) == "two", "another leader")
	_, err = elections.Proclaim(ctx, &v3electionpb.ProclaimRequest{Leader: won.Leader})
	expect.That(err != nil && strings.Contains(err.Error(), "election: not leader"), "%v", err)
	_, err = elections.Resign(ctx, &v3electionpb.ResignRequest{})
	expect.That(err != nil && strings.Contains(err.Error(), `"leader" field must be provided`), "%v", err)
	leader := expect.Must(elections.Leader(ctx, &v3electionpb.LeaderRequest{Name: []byte("v")}))
	expect.That(string(leader.Kv.Value) == "two", "%v", leader)
	expect.That(theirs.Close() == nil, "the session does not end")
}

// Drives a cluster with etcd's own Go client while its members come and go: writes, a watch, a mutex, an election,
// software transactions, leases that are kept alive. Goes on until its input ends, then looks at what it was told. Run against both servers, it has to
// pass for both.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"revd/peers/expect"
)

const (
	writers = 4
	lockers = 3
	// Longer than any election: sessions have to live on.
	ttl = 60
	// Longer than a member takes to say that it cannot.
	patience = 20 * time.Second
)

// all ends when something hangs, working when the input ends.
var all, working context.Context

var failures sync.Map

func connect() *clientv3.Client {
	return expect.Must(clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Args[1], ","), DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
	}))
}

// failed counts an error that a failover explains, and panics on another.
func failed(err error) {
	code := status.Code(err)
	explained := code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled ||
		strings.HasPrefix(err.Error(), "etcdserver: request timed out") || err == context.DeadlineExceeded ||
		strings.HasPrefix(err.Error(), "etcdserver: leader changed") ||
		// revd refuses at once where etcd lets a write wait in vain.
		strings.HasPrefix(err.Error(), "etcdserver: no leader")
	expect.That(explained, "no error of a failover: %v (%v)", err, code)
	count, _ := failures.LoadOrStore(err.Error(), new(atomic.Int64))
	count.(*atomic.Int64).Add(1)
	time.Sleep(10 * time.Millisecond)
}

func call[T any](do func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(all, patience)
	defer cancel()
	return do(ctx)
}

// until does something until it is done.
func until[T any](do func(ctx context.Context) (T, error)) T {
	for {
		value, err := call(do)
		if err == nil {
			return value
		}
		expect.That(all.Err() == nil, "not done in time: %v", err)
		failed(err)
	}
}

func main() {
	expect.That(len(os.Args) == 2, "usage: failover <endpoint>,<endpoint>,...")
	var cancel, end context.CancelFunc
	all, cancel = context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	working, end = context.WithCancel(all)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	var parts sync.WaitGroup
	for _, part := range []func(){writesAndWatch, mutex, election, transfers} {
		parts.Add(1)
		go func() {
			defer parts.Done()
			part()
		}()
	}
	parts.Wait()
	failures.Range(func(text, count any) bool {
		fmt.Printf("%d x %s\n", count.(*atomic.Int64).Load(), text)
		return true
	})
	fmt.Println("all checks passed")
}

// writesAndWatch writes on several clients; one watch is told of every write that was acknowledged, once and in order.
func writesAndWatch() {
	type write struct {
		text     string
		revision int64
	}
	first := until(func(ctx context.Context) (*clientv3.PutResponse, error) { return connect().Put(ctx, "start", "") })
	acknowledged := make([][]write, writers)
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Add(1)
		go func() {
			defer writing.Done()
			client := connect()
			for number := 0; working.Err() == nil; number++ {
				text := fmt.Sprintf("%d %d", writer, number)
				reply, err := call(func(ctx context.Context) (*clientv3.PutResponse, error) {
					return client.Put(ctx, fmt.Sprintf("w/%d", writer), text)
				})
				if err != nil {
					failed(err)
					continue
				}
				acknowledged[writer] = append(acknowledged[writer], write{text, reply.Header.Revision})
				time.Sleep(time.Millisecond)
			}
		}()
	}
	written := make(chan map[string]int64)
	go func() {
		writing.Wait()
		expected := map[string]int64{}
		for _, own := range acknowledged {
			for _, write := range own {
				expected[write.text] = write.revision
			}
		}
		written <- expected
	}()
	watching := connect().Watch(all, "w/", clientv3.WithPrefix(), clientv3.WithRev(first.Header.Revision))
	told, last := map[string]int64{}, first.Header.Revision
	var expected map[string]int64
	for expected == nil || slices.ContainsFunc(keys(expected), func(text string) bool { return told[text] == 0 }) {
		select {
		case expected = <-written:
		case response, open := <-watching:
			expect.That(open && response.Err() == nil, "the watch has ended: %v", response.Err())
			for _, event := range response.Events {
				text := string(event.Kv.Value)
				expect.That(event.Kv.ModRevision > last, "%s at %d after %d", text, event.Kv.ModRevision, last)
				expect.That(told[text] == 0, "told of %s twice", text)
				told[text], last = event.Kv.ModRevision, event.Kv.ModRevision
			}
		}
	}
	for text, revision := range expected {
		expect.That(told[text] == revision, "%s is acknowledged at %d, and the watch says %d", text, revision, told[text])
	}
	expect.That(len(expected) > 100, "only %d writes", len(expected))
	fmt.Printf("%d writes acknowledged, %d watched\n", len(expected), len(told))
}

func keys(of map[string]int64) []string {
	var found []string
	for key := range of {
		found = append(found, key)
	}
	return found
}

func session(client *clientv3.Client) *concurrency.Session {
	return until(func(context.Context) (*concurrency.Session, error) {
		return concurrency.NewSession(client, concurrency.WithTTL(ttl))
	})
}

// mutex has a counter that only the holder of a lock changes.
func mutex() {
	var added, unknown, holders atomic.Int64
	var locking sync.WaitGroup
	for range lockers {
		locking.Add(1)
		go func() {
			defer locking.Done()
			client := connect()
			mine := session(client)
			held := concurrency.NewMutex(mine, "mutex")
			for working.Err() == nil {
				if _, err := call(func(ctx context.Context) (int, error) { return 0, held.Lock(ctx) }); err != nil {
					failed(err)
					continue
				}
				expect.That(holders.Add(1) == 1, "two hold the lock")
				reply := until(func(ctx context.Context) (*clientv3.GetResponse, error) { return client.Get(ctx, "counter") })
				count, revision := 0, int64(0)
				if len(reply.Kvs) > 0 {
					count, revision = expect.Must(strconv.Atoi(string(reply.Kvs[0].Value))), reply.Kvs[0].ModRevision
				}
				done, err := call(func(ctx context.Context) (*clientv3.TxnResponse, error) {
					same := clientv3.Compare(clientv3.ModRevision("counter"), "=", revision)
					put := clientv3.OpPut("counter", strconv.Itoa(count+1))
					return client.Txn(ctx).If(held.IsOwner(), same).Then(put).Commit()
				})
				switch {
				case err != nil:
					unknown.Add(1)
					failed(err)
				default:
					// A write without an answer of an earlier holder may still have come between.
					expect.That(done.Succeeded || unknown.Load() > 0, "the holder of the lock is not alone")
					if done.Succeeded {
						added.Add(1)
					}
				}
				holders.Add(-1)
				until(func(ctx context.Context) (int, error) { return 0, held.Unlock(ctx) })
			}
			select {
			case <-mine.Done():
				panic("a session has ended")
			default:
			}
		}()
	}
	locking.Wait()
	reply := until(func(ctx context.Context) (*clientv3.GetResponse, error) { return connect().Get(ctx, "counter") })
	count := int64(expect.Must(strconv.Atoi(string(reply.Kvs[0].Value))))
	expect.That(count >= added.Load() && count <= added.Load()+unknown.Load(),
		"%d were added, %d perhaps, and the counter is %d", added.Load(), unknown.Load(), count)
	fmt.Printf("the lock was held %d times\n", count)
}

// election has a leader that stays, and one that waits until the first resigns.
func election() {
	client, other := connect(), connect()
	mine, theirs := session(client), session(other)
	leads, waits := concurrency.NewElection(mine, "election"), concurrency.NewElection(theirs, "election")
	until(func(ctx context.Context) (int, error) { return 0, leads.Campaign(ctx, "one") })
	elected := make(chan struct{})
	go func() {
		until(func(ctx context.Context) (int, error) {
			long, cancel := context.WithTimeout(all, time.Hour)
			defer cancel()
			return 0, waits.Campaign(long, "two")
		})
		close(elected)
	}()
	for working.Err() == nil {
		until(func(ctx context.Context) (int, error) { return 0, leads.Proclaim(ctx, "one, still") })
		select {
		case <-elected:
			panic("two lead")
		case <-time.After(50 * time.Millisecond):
		}
	}
	until(func(ctx context.Context) (int, error) { return 0, leads.Resign(ctx) })
	expect.That(mine.Close() == nil, "the session does not end")
	<-elected
	leader := until(func(ctx context.Context) (*clientv3.GetResponse, error) { return waits.Leader(ctx) })
	expect.That(string(leader.Kvs[0].Value) == "two", "%s leads", leader.Kvs[0].Value)
	fmt.Println("one led to the end, then two")
}

// transfers moves money between accounts in software transactions: its sum stays, and every transfer that was
// acknowledged has happened once.
func transfers() {
	const accounts, movers, each = 5, 3, 1000
	client := connect()
	account := func(number int) string { return fmt.Sprintf("account/%d", number%accounts) }
	for number := range accounts {
		until(func(ctx context.Context) (*clientv3.PutResponse, error) {
			return client.Put(ctx, account(number), strconv.Itoa(each))
		})
	}
	var done, unknown atomic.Int64
	var moving sync.WaitGroup
	for mover := range movers {
		moving.Add(1)
		go func() {
			defer moving.Done()
			client := connect()
			for number := mover; working.Err() == nil; number++ {
				_, err := call(func(ctx context.Context) (*clientv3.TxnResponse, error) {
					return concurrency.NewSTM(client, func(stm concurrency.STM) error {
						from, to := account(number), account(number+1)
						stm.Put(from, strconv.Itoa(expect.Must(strconv.Atoi(stm.Get(from)))-1))
						stm.Put(to, strconv.Itoa(expect.Must(strconv.Atoi(stm.Get(to)))+1))
						stm.Put("transfers", stm.Get("transfers")+"x")
						return nil
					}, concurrency.WithAbortContext(ctx))
				})
				if err == rpctypes.ErrFutureRev {
					// The recipe reads on at the revision of its first read, perhaps on a member that has not got there.
					continue
				}
				if err != nil {
					unknown.Add(1)
					failed(err)
					continue
				}
				done.Add(1)
				time.Sleep(20 * time.Millisecond)
			}
		}()
	}
	moving.Wait()
	reply := until(func(ctx context.Context) (*clientv3.GetResponse, error) {
		return client.Get(ctx, "account/", clientv3.WithPrefix())
	})
	sum := 0
	for _, kv := range reply.Kvs {
		sum += expect.Must(strconv.Atoi(string(kv.Value)))
	}
	expect.That(sum == accounts*each, "there were %d, and there are %d", accounts*each, sum)
	counted := until(func(ctx context.Context) (*clientv3.GetResponse, error) { return client.Get(ctx, "transfers") })
	count := int64(len(counted.Kvs[0].Value))
	expect.That(count >= done.Load() && count <= done.Load()+unknown.Load(),
		"%d transfers are acknowledged, %d perhaps, and %d have happened", done.Load(), unknown.Load(), count)
	fmt.Printf("%d transfers\n", count)
}

// Drives a server with etcd's Go client in the name of a user whose token ends: simple ones a second after their last use,
// signed ones a second or two after they were made, and with each change of users. Calls, a lease and a watch go on, and the
// watch ends with its right where the server says so.
//
//	users <endpoint> <seconds that a token counts> [watches end]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"revd/peers/expect"
)

// ctx ends when something hangs.
var ctx context.Context

func connect(endpoint, name string) *clientv3.Client {
	return expect.Must(clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 20 * time.Second, Logger: zap.NewNop(), Username: name, Password: name,
	}))
}

// setUp makes users; the client it returns has none, and so nothing to add to a token.
func setUp(endpoint string) *clientv3.Client {
	client := expect.Must(clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 20 * time.Second, Logger: zap.NewNop(),
	}))
	for user, role := range map[string]string{"root": "root", "ann": "b"} {
		expect.Must(client.UserAdd(ctx, user, user))
		expect.Must(client.RoleAdd(ctx, role))
		expect.Must(client.UserGrantRole(ctx, user, role))
	}
	expect.Must(client.RoleGrantPermission(ctx, "b", "b", "c", clientv3.PermissionType(clientv3.PermReadWrite)))
	expect.Must(client.AuthEnable(ctx))
	return client
}

// refused waits until a token counts no more.
func refused(client *clientv3.Client, token string) {
	kv := pb.NewKVClient(client.ActiveConnection())
	with := metadata.NewOutgoingContext(ctx, metadata.Pairs(rpctypes.TokenFieldNameGRPC, token))
	for {
		// A look is a use, after which a simple token counts as long as before.
		time.Sleep(ttl + time.Second)
		_, err := kv.Range(with, &pb.RangeRequest{Key: []byte("b")})
		if err != nil {
			expect.That(errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken), "%v", err)
			return
		}
	}
}

var ttl time.Duration

func main() {
	seconds := expect.Must(strconv.Atoi(os.Args[2]))
	ttl = time.Duration(seconds) * time.Second
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	nobody := setUp(os.Args[1])
	ann, root := connect(os.Args[1], "ann"), connect(os.Args[1], "root")
	_, err := ann.Put(ctx, "x", "")
	expect.That(errors.Is(err, rpctypes.ErrPermissionDenied), "%v", err)
	lease := expect.Must(ann.Grant(ctx, 60))
	expect.Must(ann.Put(ctx, "b/lease", "", clientv3.WithLease(lease.ID)))
	kept := expect.Must(ann.KeepAlive(ctx, lease.ID))
	expect.That((<-kept).TTL == 60, "not kept alive")
	watching := ann.Watch(ctx, "b/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	expect.That((<-watching).Created, "no word of the creation")

	for round := range 3 {
		refused(nobody, expect.Must(ann.Authenticate(ctx, "ann", "ann")).Token)
		expect.Must(ann.Put(ctx, "b/1", fmt.Sprint(round)))
		event := next(watching)
		expect.That(string(event.Kv.Value) == fmt.Sprint(round), "%v", event)
		// A change of users makes signed tokens old at once.
		expect.Must(root.RoleAdd(ctx, fmt.Sprint("another ", round)))
		expect.Must(ann.Get(ctx, "b/", clientv3.WithPrefix()))
		txn := expect.Must(ann.Txn(ctx).If(clientv3.Compare(clientv3.Version("b/1"), ">", 0)).Then(clientv3.OpGet("b/1")).Commit())
		expect.That(txn.Succeeded, "%v", txn)
		fmt.Printf("token %d has ended\n", round)
	}
	expect.That(expect.Must(ann.KeepAliveOnce(ctx, lease.ID)).TTL == 60, "not kept alive")

	expect.Must(root.UserRevokeRole(ctx, "ann", "b"))
	_, err = ann.Put(ctx, "b/1", "")
	expect.That(errors.Is(err, rpctypes.ErrPermissionDenied), "%v", err)
	expect.Must(root.Put(ctx, "b/1", "secret"))
	if len(os.Args) > 3 {
		// The client closes the channel of a watch that the server has canceled, without a word.
		response, isOpen := <-watching
		expect.That(!isOpen, "it goes on: %v", response)
	} else {
		expect.That(string(next(watching).Kv.Value) == "secret", "no event")
	}
	denied := <-ann.Watch(ctx, "b/", clientv3.WithPrefix())
	expect.That(denied.Canceled, "%v", denied)
	expect.Must(root.UserGrantRole(ctx, "ann", "b"))
	expect.Must(ann.Get(ctx, "b/1"))
	fmt.Println("all checks passed")
}

// next is the next event of a watch.
func next(watching clientv3.WatchChan) *clientv3.Event {
	for response := range watching {
		expect.That(response.Err() == nil, "the watch has ended: %v", response.Err())
		if len(response.Events) > 0 {
			expect.That(len(response.Events) == 1, "%v", response.Events)
			return response.Events[0]
		}
	}
	panic("the watch has ended")
}

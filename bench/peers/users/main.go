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
)

// ctx ends when something hangs.
var ctx context.Context

func must[T any](value T, err error) T {
	check(err == nil, "unexpected error: %v", err)
	return value
}

func check(holds bool, format string, args ...any) {
	if !holds {
		panic(fmt.Sprintf(format, args...))
	}
}

func connect(endpoint, name string) *clientv3.Client {
	return must(clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 20 * time.Second, Logger: zap.NewNop(), Username: name, Password: name,
	}))
}

// setUp makes users; the client it returns has none, and so nothing to add to a token.
func setUp(endpoint string) *clientv3.Client {
	client := must(clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 20 * time.Second, Logger: zap.NewNop(),
	}))
	for user, role := range map[string]string{"root": "root", "ann": "b"} {
		must(client.UserAdd(ctx, user, user))
		must(client.RoleAdd(ctx, role))
		must(client.UserGrantRole(ctx, user, role))
	}
	must(client.RoleGrantPermission(ctx, "b", "b", "c", clientv3.PermissionType(clientv3.PermReadWrite)))
	must(client.AuthEnable(ctx))
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
			check(errors.Is(rpctypes.Error(err), rpctypes.ErrInvalidAuthToken), "%v", err)
			return
		}
	}
}

var ttl time.Duration

func main() {
	seconds := must(strconv.Atoi(os.Args[2]))
	ttl = time.Duration(seconds) * time.Second
	var cancel context.CancelFunc
	ctx, cancel = context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	nobody := setUp(os.Args[1])
	ann, root := connect(os.Args[1], "ann"), connect(os.Args[1], "root")
	_, err := ann.Put(ctx, "x", "")
	check(errors.Is(err, rpctypes.ErrPermissionDenied), "%v", err)
	lease := must(ann.Grant(ctx, 60))
	must(ann.Put(ctx, "b/lease", "", clientv3.WithLease(lease.ID)))
	kept := must(ann.KeepAlive(ctx, lease.ID))
	check((<-kept).TTL == 60, "not kept alive")
	watching := ann.Watch(ctx, "b/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	check((<-watching).Created, "no word of the creation")

	for round := range 3 {
		refused(nobody, must(ann.Authenticate(ctx, "ann", "ann")).Token)
		must(ann.Put(ctx, "b/1", fmt.Sprint(round)))
		event := next(watching)
		check(string(event.Kv.Value) == fmt.Sprint(round), "%v", event)
		// A change of users makes signed tokens old at once.
		must(root.RoleAdd(ctx, fmt.Sprint("another ", round)))
		must(ann.Get(ctx, "b/", clientv3.WithPrefix()))
		txn := must(ann.Txn(ctx).If(clientv3.Compare(clientv3.Version("b/1"), ">", 0)).Then(clientv3.OpGet("b/1")).Commit())
		check(txn.Succeeded, "%v", txn)
		fmt.Printf("token %d has ended\n", round)
	}
	check(must(ann.KeepAliveOnce(ctx, lease.ID)).TTL == 60, "not kept alive")

	must(root.UserRevokeRole(ctx, "ann", "b"))
	_, err = ann.Put(ctx, "b/1", "")
	check(errors.Is(err, rpctypes.ErrPermissionDenied), "%v", err)
	must(root.Put(ctx, "b/1", "secret"))
	if len(os.Args) > 3 {
		// The client closes the channel of a watch that the server has canceled, without a word.
		response, isOpen := <-watching
		check(!isOpen, "it goes on: %v", response)
	} else {
		check(string(next(watching).Kv.Value) == "secret", "no event")
	}
	denied := <-ann.Watch(ctx, "b/", clientv3.WithPrefix())
	check(denied.Canceled, "%v", denied)
	must(root.UserGrantRole(ctx, "ann", "b"))
	must(ann.Get(ctx, "b/1"))
	fmt.Println("all checks passed")
}

// next is the next event of a watch.
func next(watching clientv3.WatchChan) *clientv3.Event {
	for response := range watching {
		check(response.Err() == nil, "the watch has ended: %v", response.Err())
		if len(response.Events) > 0 {
			check(len(response.Events) == 1, "%v", response.Events)
			return response.Events[0]
		}
	}
	panic("the watch has ended")
}

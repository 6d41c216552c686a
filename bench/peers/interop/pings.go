package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"revd/peers/expect"
)

const (
	pingKeys       = 2000
	pingValueBytes = 50_000
)

// pings has clients with default windows take much data: they ping for each sample of the bandwidth, and must not be sent
// away for it. Ranges of 0.1 to 100 MB and watches of 100 MB, on fresh connections, direct and through a slow proxy.
func pings(endpoint string, rounds, slowRounds int) {
	writer := connect(endpoint)
	live := connect(endpoint).Watch(ctx, "b/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	expect.That((<-live).Created, "no word of the creation")
	value := strings.Repeat("v", pingValueBytes)
	for number := range pingKeys {
		expect.Must(writer.Put(ctx, fmt.Sprintf("b/%04d", number), value))
	}
	count(live)
	fmt.Println("a live watch works")
	for name, path := range map[string]struct {
		endpoint string
		rounds   int
	}{"direct": {endpoint, rounds}, "proxy": {slowProxy(endpoint), slowRounds}} {
		for round := range path.rounds {
			for _, keys := range []int64{2, 16, 60, 200, 600, pingKeys} {
				// The large ones take long, and are as likely to fail.
				if keys > 200 && round%10 != 0 {
					continue
				}
				client := connect(path.endpoint)
				reply := expect.Must(client.Get(ctx, "b/", clientv3.WithPrefix(), clientv3.WithLimit(keys)))
				expect.That(int64(len(reply.Kvs)) == keys, "%d keys, not %d", len(reply.Kvs), keys)
				expect.That(client.Close() == nil, "not closed")
			}
			if round%10 == 0 {
				client := connect(path.endpoint)
				count(client.Watch(ctx, "b/", clientv3.WithPrefix(), clientv3.WithRev(1)))
				expect.That(client.Close() == nil, "not closed")
			}
		}
		fmt.Printf("%s: %d rounds work\n", name, path.rounds)
	}
	fmt.Println("all checks passed")
}

// count takes all events there are.
func count(watching clientv3.WatchChan) {
	for left := pingKeys; left > 0; {
		left -= len(next(watching))
	}
}

// slowProxy carries 50 MB/s, and each way takes 10 ms.
func slowProxy(endpoint string) string {
	listener := expect.Must(net.Listen("tcp", "127.0.0.1:0"))
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server := expect.Must(net.Dial("tcp", strings.TrimPrefix(endpoint, "http://")))
			go carry(client, server)
			go carry(server, client)
		}
	}()
	return "http://" + listener.Addr().String()
}

type parcel struct {
	bytes []byte
	due   time.Time
}

func carry(from, to net.Conn) {
	const delay, bytesPerMillisecond = 10 * time.Millisecond, 50_000
	// A second's worth may be on its way.
	parcels := make(chan parcel, 1000)
	go func() {
		defer close(parcels)
		for {
			bytes := make([]byte, bytesPerMillisecond)
			read, err := from.Read(bytes)
			if err != nil {
				return
			}
			parcels <- parcel{bytes[:read], time.Now().Add(delay)}
			time.Sleep(time.Duration(read) * time.Millisecond / bytesPerMillisecond)
		}
	}()
	for parcel := range parcels {
		time.Sleep(time.Until(parcel.due))
		if _, err := to.Write(parcel.bytes); err != nil {
			break
		}
	}
	_, _ = to.Close(), from.Close()
	for range parcels {
	}
}

func number(text string) int { return expect.Must(strconv.Atoi(text)) }

//! The runtime of the cores, which revd builds with timers of its own (`vendor/glommio-ng/`): every
//! wait ends, none ends early, and a task that runs for long is told so.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use std::cell::{Cell, RefCell};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use futures_lite::future::{poll_once, yield_now};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::channels::shared_channel;
use glommio::net::TcpListener;
use glommio::{LocalExecutorBuilder, Placement};
use revd::clock;
use revd::queues::sleep::sleep;
use revd::queues::turn::give_way;

/// A core that does not end has lost a wake-up. No core here takes a hundredth of this.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// The result of `test` on a core of its own.
fn on_a_core<T, F>(test: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    on(LocalExecutorBuilder::new(Placement::Unbound), test)
}

fn on<T, F>(core: LocalExecutorBuilder, test: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (result, ended) = mpsc::channel();
    core.spawn(move || async move { result.send(test().await).unwrap() }).unwrap();
    ended.recv_timeout(LOST_AFTER).expect("the core waits for a wake-up that does not come")
}

/// Waits for so long, looks at the clock when that is over, and says how late it is.
async fn wait(time: Duration) -> Duration {
    let until = clock::now() + time;
    sleep(time).await;
    let late = clock::now().checked_duration_since(until);
    late.unwrap_or_else(|| panic!("a wait of {time:?} ended early"))
}

/// Longer and shorter than the runtime's own timer, which stays armed over sleeps (100 ms).
#[test]
fn waits_of_an_idle_core_end() {
    on_a_core(|| async {
        for time in [0, 1, 130, 20, 250, 3, 1, 101, 99] {
            wait(Duration::from_millis(time)).await;
        }
    });
}

/// The timer in the kernel is for the long wait when the short one begins. A busy machine makes
/// waits late, but not every one of them.
#[test]
fn a_short_wait_does_not_take_as_long_as_a_long_one_that_began_before() {
    let least_late = on_a_core(|| async {
        let mut long = Box::pin(sleep(LOST_AFTER * 10));
        assert!(poll_once(&mut long).await.is_none());
        let mut least_late = [Duration::MAX; 2];
        for round in 0..20 {
            // The core sleeps over the end of its own timer, and the one of the long wait is armed.
            let is_long = round % 5 == 0;
            let late = wait(Duration::from_millis(if is_long { 120 } else { 2 })).await;
            let least = &mut least_late[usize::from(is_long)];
            *least = late.min(*least);
        }
        assert!(poll_once(&mut long).await.is_none());
        least_late
    });
    let is_in_time = least_late.iter().all(|late| *late < Duration::from_millis(20));
    assert!(is_in_time, "waits of 2 and of 120 ms were late by {least_late:?} at least");
}

#[test]
fn waits_end_beside_messages_of_other_cores_and_tasks_that_are_always_ready() {
    let (sender, receiver) = shared_channel::new_bounded(64);
    let sending = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let sender = sender.connect().await;
        // Until the other core has gone.
        while sender.send(()).await.is_ok() {
            sleep(Duration::from_micros(30)).await;
        }
    });
    on_a_core(move || async move {
        let receiver = receiver.connect().await;
        let is_over = Rc::new(Cell::new(false));
        let messages = Rc::new(Cell::new(0_u64));
        let (over, counted) = (Rc::clone(&is_over), Rc::clone(&messages));
        let receiving = glommio::spawn_local(async move {
            while !over.get() && receiver.recv().await.is_some() {
                counted.set(counted.get() + 1);
            }
        });
        let over = Rc::clone(&is_over);
        let busy = glommio::spawn_local(async move {
            while !over.get() {
                give_way().await;
            }
        });
        let waits: Vec<_> = (0..40_u64)
            .map(|number| {
                glommio::spawn_local(async move {
                    for round in 0..25 {
                        wait(Duration::from_micros((number * 331 + round * 97) % 9_000)).await;
                    }
                })
            })
            .collect();
        for waiting in waits {
            waiting.await;
        }
        is_over.set(true);
        busy.await;
        receiving.await;
        assert!(messages.get() > 100, "{} messages", messages.get());
    });
    sending.unwrap().join().unwrap();
}

/// Work in long turns with sleeps of the core between them: whichever timer was armed last, each
/// turn is told that it has run for long.
#[test]
fn a_task_that_runs_for_long_is_told_so() {
    on_a_core(|| async {
        let mut long = Box::pin(sleep(LOST_AFTER * 10));
        assert!(poll_once(&mut long).await.is_none());
        for idle in [0, 1, 130, 1, 250, 0, 0] {
            wait(Duration::from_millis(idle)).await;
            let began = clock::now();
            while !glommio::executor().need_preempt() {
                assert!(began.elapsed() < LOST_AFTER, "nothing tells this task that it has run for long");
                std::hint::spin_loop();
            }
            yield_now().await;
        }
    });
}

/// A core of which the runtime's own time is always over before its tasks begin: they run, and so
/// do those that become ready while nothing else would wake the core.
#[test]
fn tasks_that_are_ready_run_though_their_time_is_over_before_they_begin() {
    let core = LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(Duration::from_nanos(1));
    let turns = on(core, || async {
        let turns = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..4)
            .map(|_| {
                let turns = Rc::clone(&turns);
                glommio::spawn_local(async move {
                    for _ in 0..2_000 {
                        turns.set(turns.get() + 1);
                        yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        turns.get()
    });
    assert_eq!(turns, 8_000);
}

/// Completions that the kernel had no room for in a ring come when the core asks again, and a core
/// that submits nothing asks too.
#[test]
fn more_completions_than_a_ring_has_room_for_arrive() {
    const CONNECTIONS: usize = 300; // twice the depth of a ring is the room for completions: 256
    let accepted = on_a_core(|| async {
        let listener = Rc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let streams = Rc::new(RefCell::new(Vec::new()));
        let accepting: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                let (listener, streams) = (Rc::clone(&listener), Rc::clone(&streams));
                glommio::spawn_local(async move {
                    let stream = listener.accept().await.unwrap();
                    streams.borrow_mut().push(stream);
                })
            })
            .collect();
        wait(Duration::from_millis(20)).await; // all of them are with the kernel
        // The core does not look at its rings while they come.
        let connect =
            move || (0..CONNECTIONS).map(|_| TcpStream::connect(address).unwrap()).collect::<Vec<_>>();
        let mut clients = std::thread::spawn(connect).join().unwrap();
        for accepted in accepting {
            accepted.await;
        }
        let accepted = streams.borrow().len();
        drop(streams);
        assert_eq!(clients.last_mut().unwrap().read(&mut [0]).unwrap_or(0), 0);
        accepted
    });
    assert_eq!(accepted, CONNECTIONS);
}

/// A socket ends a sleep by the one ring, helper threads and other cores end it by the other one:
/// the poll that joins them stays over sleeps that the socket has ended, and still works for those
/// that come then. No timer of the core is there to end a sleep too.
#[test]
fn a_core_wakes_up_for_threads_and_cores_after_sleeps_that_sockets_have_ended() {
    const ROUNDS: usize = 1_000;
    let (ask, asked) = shared_channel::new_bounded(1);
    let (answer, answered) = shared_channel::new_bounded(1);
    let answering = LocalExecutorBuilder::new(Placement::Unbound).spawn(move || async move {
        let (asked, answer) = (asked.connect().await, answer.connect().await);
        while let Some(round) = asked.recv().await {
            answer.send(round).await.unwrap();
        }
    });
    let core = LocalExecutorBuilder::new(Placement::Unbound).preempt_timer(LOST_AFTER * 10);
    on(core, || async move {
        let (ask, answered) = (ask.connect().await, answered.connect().await);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let echoing = std::thread::spawn(move || {
            let mut echo = TcpStream::connect(address).unwrap();
            echo.set_nodelay(true).unwrap();
            let mut byte = [0];
            while echo.read_exact(&mut byte).is_ok() {
                echo.write_all(&byte).unwrap();
            }
        });
        let mut stream = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        for round in 0..ROUNDS {
            let mut byte = [0];
            stream.write_all(&[7]).await.unwrap();
            assert_eq!(stream.read(&mut byte).await.unwrap(), 1);
            assert_eq!(glommio::executor().spawn_blocking(move || round).await, round);
            ask.send(round).await.unwrap();
            assert_eq!(answered.recv().await, Some(round));
        }
        drop((stream, ask));
        echoing.join().unwrap();
    });
    answering.unwrap().join().unwrap();
}

/// A container can have a monotonic clock of its own, before or behind that of the machine: a time
/// that the runtime gives to the kernel is not one on the wrong clock.
#[test]
fn waits_are_as_long_in_a_time_namespace() {
    const TESTS: [&str; 3] = [
        "waits_of_an_idle_core_end",
        "a_short_wait_does_not_take_as_long_as_a_long_one_that_began_before",
        "an_idle_core_is_idle",
    ];
    let unshared = |rights: &[&str], offset: &str| {
        let mut command = Command::new("unshare");
        command.args(rights).args(["--time", &format!("--monotonic={offset}")]);
        command
    };
    let is_allowed = |rights: &&[&str]| {
        let outcome = unshared(rights, "1").arg("true").output();
        outcome.is_ok_and(|outcome| outcome.status.success())
    };
    // With rights of its own, or with those of a user namespace.
    let Some(rights) = [&[][..], &["--map-root-user"]].into_iter().find(is_allowed) else {
        println!("skipped: no time namespace can be made here");
        return;
    };
    for offset in ["1000000", "-5"] {
        let ourselves = std::env::current_exe().unwrap();
        let outcome = unshared(rights, offset).arg(ourselves).arg("--exact").args(TESTS).output().unwrap();
        let told = String::from_utf8_lossy(&outcome.stdout);
        assert!(outcome.status.success(), "with a clock that is off by {offset} s: {told}");
        assert!(told.contains("3 passed"), "{told}");
    }
}

/// A core with nothing to do sleeps until its next wait ends: timers that are kept armed end a
/// sleep early once, not again and again.
#[test]
fn an_idle_core_is_idle() {
    const WAIT: Duration = Duration::from_millis(1_500);
    let worked = || {
        let figures = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(figures.split(' ').next().unwrap().parse().unwrap())
    };
    let switches = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        line.trim().parse::<u64>().unwrap()
    };
    let (woken, worked) = on_a_core(move || async move {
        wait(Duration::from_millis(1)).await;
        let before = (switches(), worked());
        wait(WAIT).await;
        (switches() - before.0, worked() - before.1)
    });
    assert!(woken < 8, "the core slept {woken} times in one wait");
    // A sleep that ends at once is none that the kernel counts.
    assert!(worked < WAIT / 50, "the core worked for {worked:?} in a wait of {WAIT:?}");
}

/// The timer in the kernel was for a wait that is no more.
#[test]
fn a_wait_that_is_given_up_leaves_the_others_to_end() {
    on_a_core(|| async {
        for round in 0..200_u64 {
            let mut given_up = Box::pin(sleep(Duration::from_micros(round % 700)));
            let _ = poll_once(&mut given_up).await;
            drop(given_up);
            wait(Duration::from_micros(900 - round % 300)).await;
        }
    });
}

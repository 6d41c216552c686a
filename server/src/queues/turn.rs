//! Giving way: the end of a turn of work that has more to do.

use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use crate::queues::sleep::{Sleep, sleep};

/// A task that is ready again at once keeps the runtime from looking at sockets and timers until
/// the runtime's own time is over, a hundred milliseconds later. A timer that is over almost at
/// once does not.
const PAUSE: Duration = Duration::from_micros(5);

/// Lets everything else of this core have its turn.
pub async fn give_way() {
    sleep(PAUSE).await;
}

/// The next turn of a task that is polled by hand.
#[derive(Default)]
pub struct NextTurn(Option<Sleep>);

impl NextTurn {
    /// Has the task of `context` woken when everything else of this core had its turn.
    pub fn ask(&mut self, context: &mut Context<'_>) {
        let mut pause = sleep(PAUSE);
        if Pin::new(&mut pause).poll(context).is_ready() {
            context.waker().wake_by_ref(); // the system took the thread away for that long
        }
        self.0 = Some(pause);
    }
}

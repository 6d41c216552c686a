//! Steps of the watch hub that no notification brings: what is left of a large batch, and history
//! for unsynced watchers.

use std::rc::Rc;

use revd_member::error::Error;
use serde_json::json;

use crate::api::Api;
use crate::observe::log;
use crate::queues::turn::give_way;

/// Runs until it is cancelled.
pub async fn run(api: Rc<Api>) {
    loop {
        end_if_damaged(api.watchers().step_on().await);
        // Not a mere yield: the runtime looks at sockets only when no task is ready.
        give_way().await;
    }
}

/// Watchers must not miss events that cannot be read: the process ends.
pub fn end_if_damaged(result: Result<(), Error>) {
    if let Err(error) = result {
        log::fatal(
            "the store is damaged",
            json!({"doing": "reading events for watchers", "error": error.to_string()}),
        );
    }
}

//! A bounded queue from one core to another (or to itself, where a core plays both roles).
//!
//! [`pair`] makes both ends before the cores start; each end is then opened on the core that uses
//! it. Senders put everything of one loop turn into one message, so that a turn costs the peer at
//! most one wake-up.

use glommio::channels::shared_channel::{
    ConnectedReceiver, ConnectedSender, SharedReceiver, SharedSender, new_bounded,
};

/// The sending end before its core runs.
pub struct SenderSeed<M: Send>(SharedSender<M>);

/// The receiving end before its core runs.
pub struct ReceiverSeed<M: Send>(SharedReceiver<M>);

/// A mailbox that holds at most `messages_max` messages.
#[must_use]
pub fn pair<M: Send + 'static>(messages_max: usize) -> (SenderSeed<M>, ReceiverSeed<M>) {
    let (sender, receiver) = new_bounded(messages_max);
    (SenderSeed(sender), ReceiverSeed(receiver))
}

impl<M: Send + 'static> SenderSeed<M> {
    /// Opens this end; waits until the other core has opened its own.
    pub async fn open(self) -> Sender<M> {
        Sender(self.0.connect().await)
    }
}

impl<M: Send + 'static> ReceiverSeed<M> {
    /// Opens this end; waits until the other core has opened its own.
    pub async fn open(self) -> Receiver<M> {
        Receiver(self.0.connect().await)
    }
}

/// The sending end. Dropping it closes the mailbox; what was sent is still received.
pub struct Sender<M: Send + 'static>(ConnectedSender<M>);

impl<M: Send + 'static> Sender<M> {
    /// Sends, waiting while the mailbox is full; false when the other core is gone.
    pub async fn send(&self, message: M) -> bool {
        self.0.send(message).await.is_ok()
    }

    /// Sends if there is room; gives the message back otherwise.
    ///
    /// # Errors
    /// The message, when the mailbox is full or closed.
    pub fn try_send(&self, message: M) -> Result<(), M> {
        use glommio::{GlommioError, ResourceType};
        self.0.try_send(message).map_err(|error| match error {
            GlommioError::Closed(ResourceType::Channel(message))
            | GlommioError::WouldBlock(ResourceType::Channel(message)) => message,
            _ => unreachable!("a channel fails only by being full or closed"),
        })
    }
}

/// The receiving end.
pub struct Receiver<M: Send + 'static>(ConnectedReceiver<M>);

impl<M: Send + 'static> Receiver<M> {
    /// The next message; none when the sender is gone and everything was received.
    pub async fn receive(&self) -> Option<M> {
        self.0.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glommio::{LocalExecutorBuilder, Placement};

    fn on_a_core<T: Send + 'static, F: Future<Output = T> + 'static>(
        body: impl FnOnce() -> F + Send + 'static,
    ) -> glommio::ExecutorJoinHandle<T> {
        LocalExecutorBuilder::new(Placement::Unbound).spawn(body).unwrap()
    }

    #[test]
    fn messages_cross_between_cores_in_order_and_the_end_is_seen() {
        let (sender, receiver) = pair::<u32>(4);
        let sending = on_a_core(move || async move {
            let sender = sender.open().await;
            for message in 0..1000 {
                assert!(sender.send(message).await);
            }
        });
        let receiving = on_a_core(move || async move {
            let receiver = receiver.open().await;
            let mut messages = Vec::new();
            while let Some(message) = receiver.receive().await {
                messages.push(message);
            }
            messages
        });
        sending.join().unwrap();
        assert_eq!(receiving.join().unwrap(), (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_core_can_write_to_itself() {
        let (sender, receiver) = pair::<u32>(4);
        let sum = on_a_core(move || async move {
            let receiving = glommio::spawn_local(async move {
                let receiver = receiver.open().await;
                let mut sum = 0;
                while let Some(message) = receiver.receive().await {
                    sum += message;
                }
                sum
            });
            let sender = sender.open().await;
            for message in 0..1000 {
                assert!(sender.send(message).await);
            }
            drop(sender);
            receiving.await
        });
        assert_eq!(sum.join().unwrap(), 499_500);
    }

    #[test]
    fn a_full_mailbox_gives_the_message_back() {
        let (sender, receiver) = pair::<u32>(2);
        let core = on_a_core(move || async move {
            let (receiver, sender) = futures_lite::future::zip(receiver.open(), sender.open()).await;
            let mut sent = 0;
            while sender.try_send(sent).is_ok() {
                sent += 1;
            }
            assert!(sent >= 2, "the bound is {sent}");
            assert_eq!(receiver.receive().await, Some(0));
            assert_eq!(sender.try_send(99), Ok(()));
            drop(receiver);
            assert_eq!(sender.try_send(7), Err(7));
        });
        core.join().unwrap();
    }
}

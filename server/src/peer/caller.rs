//! The dialer's part of first words, on any core.

use std::io;
use std::sync::Arc;

use revd_member::cluster::Identity;
use revd_member::peer::Peer;
use revd_member::peer::hello::{Answer, Hello, Purpose, Refusal};

use crate::limits;
use crate::net::tls::{self, TlsDomain};
use crate::peer::link::Link;
use crate::peer::transport::{self, FirstWords, Transport};
use crate::version;

/// A member, as it says who it is.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The member.
    pub identity: Identity,
    /// Changes at every start.
    pub boot: u64,
    /// Where its peers reach it.
    pub urls: Arc<[String]>,
    /// Certificates for members.
    pub tls: Arc<TlsDomain>,
}

impl Caller {
    /// Opens a connection of its own to another member, to send a snapshot: both sides have agreed
    /// on that, nothing else is said yet.
    ///
    /// # Errors
    /// Why the last one of the member's URLs was of no use.
    pub async fn open_for_snapshot(&self, to: &Peer) -> io::Result<Link> {
        let mut result = Err(io::Error::new(io::ErrorKind::NotFound, "the member has no peer URL"));
        for url in &to.urls {
            result = self.dial(url, true, to.id, Purpose::Snapshot).await.map(|(stream, _)| stream);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Connects, and agrees with the listener on what follows. The members agreed on the URL, or
    /// any program has named it.
    pub(super) async fn dial(
        &self,
        url: &str,
        is_agreed: bool,
        to: u64,
        purpose: Purpose,
    ) -> io::Result<(Link, Answer)> {
        let mut stream = match transport::connect(url, is_agreed).await? {
            (stream, None) => Link::Plain(stream),
            (stream, Some(host)) => Link::Secure(Box::new(tls::connect(stream, &host, &self.tls).await?)),
        };
        let version = version::for_peers();
        let urls = self.urls.to_vec();
        let hello = Hello { purpose, from: self.identity, to, boot: self.boot, urls, version };
        let greeting = greet(&mut stream, &hello);
        let answer = transport::within(limits::PEER_HELLO_DEADLINE, "it does not answer", greeting).await?;
        Ok((stream, answer))
    }
}

/// The listener says that this member is none any more.
pub(super) fn is_removal(error: &io::Error) -> bool {
    let refusal = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>());
    refusal == Some(&Refusal::Removed)
}

async fn greet(stream: &mut impl Transport, hello: &Hello) -> io::Result<Answer> {
    transport::write(stream, &hello.encode()).await?;
    let FirstWords::Peer(words) = transport::first_words(stream, Vec::new()).await? else {
        return Err(io::Error::other(
            "it does not speak the protocol of revd's peers: another program, or TLS",
        ));
    };
    let answer = Answer::decode(&words).map_err(io::Error::other)?;
    let meant = Identity { cluster: hello.from.cluster, member: hello.to };
    match answer.refusal {
        // Another program at that address cannot know.
        Some(Refusal::Removed) if answer.from != meant => Err(io::Error::other(Refusal::Member)),
        Some(refusal) => Err(io::Error::new(io::ErrorKind::ConnectionRefused, refusal)),
        None if answer.from != meant => Err(io::Error::other(Refusal::Member)),
        None => Ok(answer),
    }
}

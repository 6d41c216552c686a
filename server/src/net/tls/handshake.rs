//! Handshakes, within their time and in turns.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use futures_lite::{AsyncRead, AsyncWrite};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConnection, HandshakeKind, ServerConnection, StreamOwned};

use crate::limits;
use crate::net::socket::HangUp;
use crate::net::tls::address;
use crate::net::tls::der::Certificate;
use crate::net::tls::domain::TlsDomain;
use crate::net::tls::material::Material;
use crate::net::tls::stream::TlsStream;
use crate::net::tls::today;
use crate::net::tls::turns::{HandshakePlace, HandshakeTurns};
use crate::queues::sleep::sleep;

/// A session that a caller has begun.
pub(crate) struct Accepted<S> {
    /// The session.
    pub(crate) stream: TlsStream<S>,
    /// The common name of the caller's certificate, which was verified.
    pub(crate) common_name: Option<Rc<str>>,
}

/// Carries out the handshake that a caller begins; `first` was read already. `from`, its address,
/// is compared with the names in the caller's certificate where that is asked for.
///
/// # Errors
/// Why there is no session.
pub(crate) async fn accept<S: AsyncRead + AsyncWrite + HangUp + Unpin>(
    socket: S,
    first: &[u8],
    from: Option<IpAddr>,
    domain: &TlsDomain,
    turns: &HandshakeTurns,
) -> io::Result<Accepted<S>> {
    let material = domain.current().map_err(io::Error::other)?;
    let server = material.server.as_ref().ok_or_else(|| io::Error::other("there is no certificate"))?;
    let session = ServerConnection::new(Arc::clone(server)).map_err(io::Error::other)?;
    let stream = TlsStream::new(socket, session);
    let place = turns.enter(from);
    let accepting = async {
        let stream = converse(stream, first, &place).await?;
        let common_name = check(&stream, from, &material, &place).await?;
        place.done();
        Ok(Accepted { stream, common_name })
    };
    in_time(accepting, &place).await
}

/// Begins a session with a host that was dialed.
///
/// # Errors
/// Why there is none.
pub(crate) async fn connect<S: AsyncRead + AsyncWrite + HangUp + Unpin>(
    socket: S,
    host: &str,
    domain: &TlsDomain,
) -> io::Result<TlsStream<S>> {
    let (material, host) = (domain.current().map_err(io::Error::other)?, domain.name_of(host));
    let stream = TlsStream::new(socket, dialing(host, &material)?);
    let place = HandshakeTurns::new(1).enter(None);
    let stream = in_time(converse(stream, &[], &place), &place).await?;
    if stream.is_resumed() {
        verify_again(stream.certificates(), host, &material)?;
    }
    Ok(stream)
}

/// A resumed session shows no certificate: the one of the first session may have ended since.
fn verify_again(shown: &[CertificateDer<'_>], host: &str, material: &Material) -> io::Result<()> {
    let (own, others) = shown.split_first().ok_or(io::ErrorKind::PermissionDenied)?;
    let now = UnixTime::since_unix_epoch(today::now());
    let verified = material.listeners.verify_server_cert(own, others, &server_name(host)?, &[], now);
    verified.map(drop).map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))
}

async fn in_time<T>(doing: impl Future<Output = io::Result<T>>, place: &HandshakePlace) -> io::Result<T> {
    let late = async {
        sleep(limits::HANDSHAKE_DEADLINE).await;
        Err(io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake takes too long"))
    };
    let displaced = async {
        place.displaced().await;
        Err(displaced())
    };
    futures_lite::future::or(doing, futures_lite::future::or(late, displaced)).await
}

fn displaced() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "too many TLS handshakes: a newer one has its place")
}

/// Says and hears what a handshake needs.
async fn converse<S: AsyncRead + AsyncWrite + HangUp + Unpin>(
    mut stream: TlsStream<S>,
    first: &[u8],
    place: &HandshakePlace,
) -> io::Result<TlsStream<S>> {
    let mut received = first.to_vec();
    // The side that dials has spoken before it hears anything.
    let mut has_spoken = first.is_empty();
    let (mut heard, mut answers) = (0, 0);
    if !received.is_empty() {
        receive_more(&mut stream, &mut received).await?;
    }
    loop {
        if !received.is_empty() {
            place.hold(stream.received() + received.capacity());
            // Behind the answer a caller may have said all that it has to say.
            let Some(turn) = place.turn(|| !has_spoken && stream.has_hung_up()).await else {
                return Err(if place.is_displaced() {
                    displaced()
                } else {
                    io::ErrorKind::UnexpectedEof.into()
                });
            };
            let mut feeding = turn.compute(|| stream.feed(&received));
            place.hold(stream.received());
            // For a request of another hello nothing is computed; it is the first answer.
            let answered = stream.has_records();
            answers += u32::from(answered);
            has_spoken |= answers > u32::from(stream.asked_again());
            heard = if answered { 0 } else { heard + received.len() };
            if has_spoken && feeding.is_ok() {
                place.begin();
            } else if !has_spoken && heard > limits::TLS_HELLO_BYTES_MAX {
                let why = format!("a TLS hello of more than {} bytes", limits::TLS_HELLO_BYTES_MAX);
                feeding = feeding.and(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
            }
            if let Err(error) = feeding {
                place.failed();
                // The other side is told why, by rustls; it may be gone.
                let told = std::future::poll_fn(|context| stream.poll_send(context));
                let _ = futures_lite::future::or(told, give_up()).await;
                return Err(error);
            }
        }
        std::future::poll_fn(|context| stream.poll_send(context)).await?;
        if !stream.is_handshaking() {
            return Ok(stream);
        }
        received.resize(limits::TLS_HANDSHAKE_READ_BYTES, 0);
        let reading = |context: &mut std::task::Context<'_>| {
            Poll::Ready(ready!(stream.poll_receive(context, &mut received)))
        };
        let read = std::future::poll_fn(reading).await?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.truncate(read);
    }
}

/// Adds what lies in the socket already to the front of a hello, which is not worth a turn of its
/// own.
async fn receive_more<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut TlsStream<S>,
    received: &mut Vec<u8>,
) -> io::Result<()> {
    let had = received.len();
    received.resize(had + limits::TLS_HANDSHAKE_READ_BYTES, 0);
    let reading = std::future::poll_fn(|context| stream.poll_receive(context, &mut received[had..]));
    let read = futures_lite::future::poll_once(reading).await.unwrap_or(Ok(0))?;
    received.truncate(had + read);
    Ok(())
}

async fn give_up() -> io::Result<()> {
    sleep(Duration::from_millis(100)).await;
    Ok(())
}

/// The rest of the rules for a caller: its certificate, if the session goes on from an earlier one,
/// and its address. The common name of its certificate, if callers are known by that.
async fn check<S>(
    stream: &TlsStream<S>,
    from: Option<IpAddr>,
    material: &Material,
    place: &HandshakePlace,
) -> io::Result<Option<Rc<str>>> {
    let Some(callers) = &material.callers else { return Ok(None) };
    let Some((own, others)) = stream.certificates().split_first() else {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "tls: no certificate"));
    };
    if stream.is_resumed() {
        let now = UnixTime::since_unix_epoch(today::now());
        let verify = || callers.verify_client_cert(own, others, now);
        let turn = place.turn(|| false).await.ok_or_else(displaced)?;
        let verified = turn.compute(verify);
        verified.map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    }
    if material.compares_addresses {
        // A socket that is gone, or one of a kind that has no addresses.
        let no_address = "tls: the caller has no address to compare with its certificate";
        let from = from.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, no_address))?;
        address::check(own, from).await?;
    }
    let name = |own: &CertificateDer<'_>| Certificate::read(own)?.common_name;
    Ok(name(own).filter(|_| material.names_callers).map(Rc::from))
}

/// The same as [`connect`], for threads that may block.
///
/// # Errors
/// Why there is no session.
pub(crate) fn connect_blocking<S: io::Read + io::Write>(
    socket: S,
    authority: &str,
    domain: &TlsDomain,
) -> io::Result<StreamOwned<ClientConnection, S>> {
    let host = domain.name_of(authority.rsplit_once(':').map_or(authority, |(host, _)| host));
    let material = domain.current_or_load().map_err(io::Error::other)?;
    let mut session = dialing(host, &material)?;
    let mut socket = socket;
    while session.is_handshaking() {
        session.complete_io(&mut socket)?;
    }
    if session.handshake_kind() == Some(HandshakeKind::Resumed) {
        verify_again(session.peer_certificates().unwrap_or_default(), host, &material)?;
    }
    Ok(StreamOwned::new(session, socket))
}

fn dialing(host: &str, material: &Material) -> io::Result<ClientConnection> {
    let config = Arc::clone(&material.client);
    ClientConnection::new(config, server_name(host)?).map_err(io::Error::other)
}

fn server_name(host: &str) -> io::Result<ServerName<'static>> {
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    ServerName::try_from(name).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::sync::mpsc::Receiver;

    use futures_lite::AsyncReadExt as _;
    use futures_lite::future::poll_once;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    use rustls::crypto::CryptoProvider;
    use rustls::crypto::aws_lc_rs::kx_group;
    use rustls::{ClientConfig, ServerConfig};

    use super::*;
    use crate::config::TlsConfig;
    use crate::net::listen::connect_file;
    use crate::queues::sleep::on_a_core;
    use crate::queues::turn::give_way;

    /// A server with a certificate for `d.test`, and the file of its authority.
    fn server(dir: &Path) -> (Arc<ServerConfig>, String) {
        let file = |name: &str, text: String| {
            let path = dir.join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (key, of_authority) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::from_params(&authority, &of_authority);
        let made = CertificateParams::new(["d.test".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        let serving = TlsConfig {
            cert_file: file("cert", made.pem()),
            key_file: file("key", key.serialize_pem()),
            ..TlsConfig::default()
        };
        let server = TlsDomain::open("peer", serving).unwrap().current().unwrap().server.clone().unwrap();
        (server, file("bundle", authority.self_signed(&of_authority).unwrap().pem()))
    }

    fn dialing_with(bundle: &str) -> Arc<TlsDomain> {
        let config = TlsConfig { trusted_ca_file: bundle.to_owned(), ..TlsConfig::default() };
        TlsDomain::open("peer", config).unwrap()
    }

    #[test]
    fn nothing_is_computed_for_a_caller_that_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let (server, bundle) = server(dir.path());
        let material = dialing_with(&bundle).current_or_load().unwrap();
        let mut hello = Vec::new();
        dialing("d.test", &material).unwrap().write_tls(&mut hello).unwrap();
        let (path, turns) = (dir.path().join("socket"), HandshakeTurns::new(1));
        let listener = UnixListener::bind(&path).unwrap();
        // It goes behind its last byte, which is in the socket and is read all the same, or behind
        // the first byte of an answer.
        let has_computed = |goes: bool| {
            on_a_core(async {
                let ours = connect_file(&path).unwrap();
                let mut theirs = listener.accept().unwrap().0;
                theirs.write_all(&hello[24..]).unwrap();
                let leaving = std::thread::spawn(move || {
                    let heard = goes || theirs.read_exact(&mut [0]).is_ok();
                    theirs.shutdown(std::net::Shutdown::Both).is_ok() && heard
                });
                while goes && !ours.has_hung_up() {
                    give_way().await;
                }
                let session = ServerConnection::new(Arc::clone(&server)).unwrap();
                let place = turns.enter(None);
                let ended = converse(TlsStream::new(ours, session), &hello[..24], &place).await;
                assert!(ended.is_err() && leaving.join().unwrap());
                let has_computed = place.cost() > 0;
                place.done();
                has_computed
            })
        };
        assert!(has_computed(false));
        assert!(!has_computed(true));
    }

    /// The caller's side: it goes on when it is told, and sends nothing more behind that.
    fn leave(mut theirs: UnixStream, mut session: ClientConnection, hello: [&[u8]; 2], go_on: &Receiver<()>) {
        theirs.write_all(hello[0]).unwrap();
        go_on.recv().unwrap();
        theirs.write_all(hello[1]).unwrap();
        let is_half = !hello[1].is_empty();
        while !is_half && session.is_handshaking() {
            session.complete_io(&mut theirs).unwrap();
        }
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let told = theirs.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(told == 0, is_half, "an answer");
    }

    /// A caller sends no more while its handshake waits for its second turn, behind half of a hello
    /// or behind all of it: how that ends, and whether something was computed then.
    fn left(behind_half: bool) -> (io::Result<()>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let (server, bundle) = server(dir.path());
        let mut session = dialing("d.test", &dialing_with(&bundle).current_or_load().unwrap()).unwrap();
        let mut hello = Vec::new();
        session.write_tls(&mut hello).unwrap();
        let half = if behind_half { hello.len() / 2 } else { hello.len() };
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        on_a_core(async {
            let mut ours = connect_file(&path).unwrap();
            let theirs = listener.accept().unwrap().0;
            let mut first = [0; 24];
            let caller = std::thread::spawn(move || {
                let (front, rest) = hello.split_at(half);
                leave(theirs, session, [front, rest], &told);
            });
            let (turns, socket) = (HandshakeTurns::new(1), ours.as_fd().try_clone_to_owned().unwrap());
            let (place, other) = (turns.enter(None), turns.enter(None));
            ours.read_exact(&mut first).await.unwrap();
            let session = ServerConnection::new(server).unwrap();
            let mut conversing = Box::pin(converse(TlsStream::new(ours, session), &first, &place));
            let mut until = async |is_so: &dyn Fn() -> bool| {
                while !is_so() {
                    assert!(poll_once(&mut conversing).await.is_none());
                    give_way().await;
                }
            };
            until(&|| place.cost() > 0).await;
            assert_eq!(place.has_begun(), !behind_half, "a hello is heard as one");
            let turn = other.turn(|| false).await.unwrap();
            tell.send(()).unwrap();
            until(&|| turns.waiting() > 0).await;
            let computed = place.cost();
            until(&|| socket.has_hung_up()).await;
            drop(turn);
            drop(socket);
            let ended = conversing.await.map(drop);
            let has_computed = place.cost() > computed;
            caller.join().unwrap();
            (ended, has_computed)
        })
    }

    #[test]
    fn a_handshake_goes_on_where_its_caller_has_no_more_to_say() {
        let (ended, has_computed) = left(false);
        assert!(ended.is_ok() && has_computed, "{ended:?}");
        let (ended, has_computed) = left(true);
        assert!(ended.is_err() && !has_computed, "half of a hello, and then the rest, and the end");
    }

    #[test]
    fn a_hello_has_an_end() {
        let record = |front: &[u8]| [&[0x16, 3, 1, 0x30, 0], front, &vec![0; 0x3000 - front.len()]].concat();
        let message = [record(&[1, 0, 0xfa, 0]), record(&[]), record(&[])].concat();
        let why = refused(&message).to_string();
        assert!(why.contains("a TLS hello of more than 32768 bytes"), "{why}");
    }

    /// Its first hello has cost a look at it; for the second one the server computes.
    #[test]
    fn a_caller_that_is_asked_for_another_hello_was_not_answered() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _) = server(dir.path());
        // Of a group that the server does not take, and of one that it asks for then.
        let kx_groups = vec![kx_group::MLKEM768, kx_group::X25519];
        let provider = CryptoProvider { kx_groups, ..rustls::crypto::aws_lc_rs::default_provider() };
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let mut caller = ClientConnection::new(Arc::new(config), server_name("d.test").unwrap()).unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        on_a_core(async {
            let (mut ours, mut theirs) = (connect_file(&path).unwrap(), listener.accept().unwrap().0);
            theirs.set_nonblocking(true).unwrap();
            caller.write_tls(&mut theirs).unwrap();
            let mut first = [0; 24];
            ours.read_exact(&mut first).await.unwrap();
            let turns = HandshakeTurns::new(1);
            let place = turns.enter(None);
            let session = ServerConnection::new(server).unwrap();
            let mut conversing = Box::pin(converse(TlsStream::new(ours, session), &first, &place));
            let mut was_asked = false;
            while !place.has_begun() {
                assert!(poll_once(&mut conversing).await.is_none());
                let _ = caller.complete_io(&mut theirs); // it does not wait
                let asked = caller.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
                assert!(!asked || was_asked || place.cost() > 0 && !place.has_begun());
                was_asked |= asked;
                give_way().await;
            }
            assert!(was_asked);
        });
    }

    #[test]
    fn what_a_malformed_record_has_cost_is_wasted() {
        refused(&[0x16, 3, 1, 0xff, 0xff]);
    }

    /// Why a caller that says this, and waits, is refused; that is wasted.
    fn refused(says: &[u8]) -> io::Error {
        let dir = tempfile::tempdir().unwrap();
        let (server, _) = server(dir.path());
        on_a_core(async {
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let (ours, mut theirs) = (connect_file(&path).unwrap(), listener.accept().unwrap().0);
            theirs.write_all(&says[5..]).unwrap();
            let turns = HandshakeTurns::new(1);
            let place = turns.enter(None);
            let session = ServerConnection::new(server).unwrap();
            let refused = converse(TlsStream::new(ours, session), &says[..5], &place).await;
            assert!(turns.has_wasted());
            refused.err().unwrap()
        })
    }

    /// Members that records of a domain name have that domain's name, wherever they are.
    #[test]
    fn who_is_dialed_has_the_name_that_was_said() {
        let dir = tempfile::tempdir().unwrap();
        let (server, bundle) = server(dir.path());
        let dial = |domain: &TlsDomain| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            let mut session = rustls::ServerConnection::new(Arc::clone(&server)).unwrap();
            let serving = std::thread::spawn(move || {
                while session.is_handshaking() && session.complete_io(&mut theirs).is_ok() {}
            });
            let dialed = connect_blocking(ours, "127.0.0.1:2380", domain).map(drop);
            serving.join().unwrap();
            dialed.map_err(|error| error.to_string())
        };
        let by_host = dialing_with(&bundle);
        assert!(dial(&by_host).is_err_and(|why| why.contains("not valid for name")));
        let by_domain = dialing_with(&bundle);
        by_domain.dial_as("d.test");
        assert_eq!(dial(&by_domain), Ok(()));
    }
}

//! Beside crate `h2`: it compresses headers in every way the standard
//! knows, and must understand ours.

#![allow(clippy::unwrap_used, reason = "a test that meets the unexpected should stop there")]

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request};
use revd_http2::hpack::{Decoder, literal};
use revd_http2::{Config, Connection, Event, PREFACE, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// A server that answers each request with the fields it has received, some of them added to the
/// client's table.
async fn echo(mut wire: DuplexStream) {
    let mut connection: Connection<()> = Connection::new(Role::Server, Config::default());
    let mut decoder = Decoder::default();
    let mut preface = [0; PREFACE.len()];
    wire.read_exact(&mut preface).await.unwrap();
    assert_eq!(preface, PREFACE);
    let (mut waiting, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let mut rest = &waiting[..];
        let mut answers = Vec::new();
        while let Some(event) = connection.receive(&mut rest).unwrap() {
            let Event::Headers { stream, block, .. } = event else { continue };
            let mut answer = Vec::new();
            literal(&mut answer, b":status", b"200", stream % 4 == 1);
            let field = |name: &[u8], value: &[u8]| {
                if !name.starts_with(b":") {
                    literal(&mut answer, name, value, (name.len() + value.len()).is_multiple_of(2));
                }
            };
            decoder.decode(&block, field).unwrap();
            answers.push((stream, answer));
        }
        let used = waiting.len() - rest.len();
        waiting.drain(..used);
        for (stream, answer) in answers {
            connection.send_head(stream, &answer, false);
            connection.send_data(stream, &[Bytes::from_static(b"body")]);
            connection.send_end(stream, None);
        }
        let out = connection.out();
        while !out.is_empty() {
            let mut slices = [std::io::IoSlice::new(&[]); 1];
            out.fill(&mut slices);
            let sent = slices[0].len();
            wire.write_all(&slices[0]).await.unwrap();
            out.advance(sent);
        }
        match wire.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => waiting.extend_from_slice(&buffer[..read]),
        }
    }
}

#[tokio::test]
async fn headers_of_another_implementation_survive_the_round_trip() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = tokio::spawn(echo(far));
    let (mut client, connection) = h2::client::handshake(near).await.unwrap();
    let driving = tokio::spawn(connection);
    let mut state = 1_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    for number in 0..2_000 {
        let mut request = Request::post("http://x/etcdserverpb.KV/Put").body(()).unwrap();
        let mut sent = Vec::new();
        for _ in 0..below(8) {
            let name = match below(4) {
                0 => "content-type".to_owned(),
                1 => format!("x-{}", below(20)),
                2 => format!("x-long-name-{}", "n".repeat(usize::try_from(below(60)).unwrap())),
                _ => "user-agent".to_owned(),
            };
            let len = if below(10) == 0 { below(3_000) } else { below(40) };
            let value: Vec<u8> = (0..len).map(|_| u8::try_from(0x20 + below(0x5f)).unwrap()).collect();
            let value = String::from_utf8(value).unwrap().trim().to_owned();
            let name = HeaderName::try_from(name).unwrap();
            if request.headers_mut().insert(&name, HeaderValue::try_from(&value).unwrap()).is_none() {
                sent.push(name.clone());
            }
        }
        let expected = request.headers().clone();
        client = client.ready().await.unwrap();
        let (response, _) = client.send_request(request, true).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers(), &expected, "request {number}");
        let (_, mut body) = response.into_parts();
        let mut whole = Vec::new();
        while let Some(part) = body.data().await {
            let part = part.unwrap();
            body.flow_control().release_capacity(part.len()).unwrap();
            whole.extend_from_slice(&part);
        }
        assert_eq!(whole, b"body");
    }
    drop(client);
    driving.await.unwrap().unwrap();
    server.await.unwrap();
}

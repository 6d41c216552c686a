//! URLs of members, as etcd takes them: a scheme, a host and a port, and nothing else.

mod escapes;
mod in_brackets;

/// Why texts are no URLs, in etcd's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// There is none.
    #[error("no valid URLs given")]
    None,
    /// A scheme that no member is reached by.
    #[error("URL scheme must be http, https, unix, or unixs: {0}")]
    Scheme(String),
    /// The host or the port is missing.
    #[error("URL address does not have the form \"host:port\": {0}")]
    HostPort(String),
    /// It goes on behind the port.
    #[error("URL must not contain a path: {0}")]
    Path(String),
    /// It cannot be read at all.
    #[error("parse {url:?}: {problem}")]
    Parse {
        /// The text.
        url: String,
        /// The mistake in it.
        problem: String,
    },
}

/// The URLs that these texts are, in order. Their order counts: a member's id is made of them.
///
/// # Errors
/// [`UrlError`], about the first text that is none.
pub fn parse(texts: &[String]) -> Result<Vec<String>, UrlError> {
    if texts.is_empty() {
        return Err(UrlError::None);
    }
    let mut urls = texts.iter().map(|text| parse_one(text.trim())).collect::<Result<Vec<_>, _>>()?;
    urls.sort();
    Ok(urls)
}

/// Host and port of a URL that [`parse`] took.
#[must_use]
pub fn authority(url: &str) -> &str {
    let behind = url.split_once("://").map_or(url, |(_, behind)| behind);
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

/// Whether two lists of URLs, each sorted, are the same: as they are written, or by the addresses
/// that their names stand for. `resolve` knows the first address of a host and port.
///
/// # Errors
/// How they differ, in etcd's words.
pub fn are_same(
    left: &[String],
    right: &[String],
    resolve: &mut dyn FnMut(&str) -> Option<String>,
) -> Result<(), String> {
    if left.len() != right.len() {
        let shown = |urls: &[String]| {
            let urls: Vec<String> = urls.iter().map(|url| format!("{url:?}")).collect();
            format!("len([{}])", urls.join(" "))
        };
        return Err(format!("{} != {}", shown(left), shown(right)));
    }
    if left == right {
        return Ok(());
    }
    let mut resolved = |urls: &[String]| {
        let mut urls: Vec<String> = urls.iter().map(|url| with_address(url, resolve)).collect();
        urls.sort();
        urls
    };
    let (left, right) = (resolved(left), resolved(right));
    match left.iter().zip(&right).find(|(left, right)| left != right) {
        Some((left, right)) => Err(format!("resolved urls: {left:?} != {right:?}")),
        None => Ok(()),
    }
}

/// The URL with an address in the place of its name, if that is known. As with etcd, `localhost`
/// stays as it is: each machine has one.
fn with_address(url: &str, resolve: &mut dyn FnMut(&str) -> Option<String>) -> String {
    let host = authority(url);
    if !url.starts_with("http") || host.starts_with("localhost:") {
        return url.to_owned();
    }
    resolve(host).map_or_else(|| url.to_owned(), |address| url.replacen(host, &address, 1))
}

fn parse_one(text: &str) -> Result<String, UrlError> {
    let problem = |problem: &str| UrlError::Parse { url: text.to_owned(), problem: problem.to_owned() };
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(problem("net/url: invalid control character in URL"));
    }
    let (scheme, behind) = text.split_once(':').unwrap_or(("", text));
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    if !is_scheme {
        let is_colon_in_path = text.contains(':') && !text.starts_with('/') && !scheme.contains('/');
        return Err(if text.starts_with(':') {
            problem("missing protocol scheme")
        } else if is_colon_in_path {
            problem("first path segment in URL cannot contain colon")
        } else {
            UrlError::Scheme(text.to_owned())
        });
    }
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "unix" | "unixs" => return Ok(text.to_owned()),
        "http" | "https" => {}
        _ => return Err(UrlError::Scheme(text.to_owned())),
    }
    let Some(behind) = behind.strip_prefix("//") else { return Err(UrlError::HostPort(text.to_owned())) };
    let address = read_address(authority(text)).map_err(|found| problem(&found))?;
    let colon = address.iter().rposition(|byte| *byte == b':');
    let host = &address[..colon.ok_or_else(|| UrlError::HostPort(text.to_owned()))?];
    let in_brackets = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]"));
    let (name, others) = in_brackets.map_or((host, &b":[]"[..]), |name| (name, &b"[]"[..]));
    if name.iter().any(|byte| others.contains(byte)) {
        return Err(UrlError::HostPort(text.to_owned()));
    }
    if behind.split(['?', '#']).next().is_some_and(|behind| behind.contains('/')) {
        return Err(UrlError::Path(text.to_owned()));
    }
    Ok(format!("{scheme}://{behind}"))
}

/// The host and port, without escapes; or the mistake in them that Go names first.
fn read_address(address: &str) -> Result<Vec<u8>, String> {
    let opens = address.rfind('[');
    if opens.is_some_and(|at| at > 0) {
        return Err("invalid IP-literal".to_owned());
    }
    let end = address.rfind(']').filter(|_| opens.is_some());
    let port = match end {
        Some(end) => &address[end + 1..],
        None if opens.is_some() => return Err("missing ']' in host".to_owned()),
        None => address.rfind(':').map_or("", |colon| &address[colon..]),
    };
    let is_number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_number) {
        return Err(format!("invalid port {port:?} after host"));
    }
    let Some(end) = end else { return escapes::undone(address, false) };
    let host = escapes::undone(&address[1..end], true)?;
    match in_brackets::mistake(&host) {
        Some(mistake) => Err(mistake),
        None => Ok([b"[", &host[..], b"]", port.as_bytes()].concat()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(texts: &[&str]) -> Result<Vec<String>, String> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        parse(&texts).map_err(|error| error.to_string())
    }

    /// The texts are those of an etcd 3.7.1 that is started with such a `--listen-peer-urls`.
    #[test]
    fn texts_that_are_no_urls_are_refused_in_the_words_of_etcd() {
        for (text, problem) in [
            ("", "URL scheme must be http, https, unix, or unixs: "),
            ("foo", "URL scheme must be http, https, unix, or unixs: foo"),
            ("ftp://a:1", "URL scheme must be http, https, unix, or unixs: ftp://a:1"),
            ("localhost:1", "URL scheme must be http, https, unix, or unixs: localhost:1"),
            ("127.0.0.1:1", "parse \"127.0.0.1:1\": first path segment in URL cannot contain colon"),
            ("http://127.0.0.1", "URL address does not have the form \"host:port\": http://127.0.0.1"),
            ("http://::1", "URL address does not have the form \"host:port\": http://::1"),
            ("http:a:1", "URL address does not have the form \"host:port\": http:a:1"),
            ("http://a:b", "parse \"http://a:b\": invalid port \":b\" after host"),
            ("http://a b:x", "parse \"http://a b:x\": invalid port \":x\" after host"),
            ("http://[::1]x:2", "parse \"http://[::1]x:2\": invalid port \"x:2\" after host"),
            ("http://[::1:2", "parse \"http://[::1:2\": missing ']' in host"),
            ("http://[::1]", "URL address does not have the form \"host:port\": http://[::1]"),
            ("http://a]:1", "URL address does not have the form \"host:port\": http://a]:1"),
            ("http://a b", "parse \"http://a b\": invalid character \" \" in host name"),
            ("http://[foo]:x", "parse \"http://[foo]:x\": invalid port \":x\" after host"),
            ("http://[foo]", "parse \"http://[foo]\": invalid host: ParseAddr(\"foo\"): unable to parse IP"),
            ("http://u@[]:1", "parse \"http://u@[]:1\": invalid host: ParseAddr(\"\"): unable to parse IP"),
            ("http://[1.2.3.4]:1", "parse \"http://[1.2.3.4]:1\": invalid IP-literal"),
            ("http://x[::1]:x", "parse \"http://x[::1]:x\": invalid IP-literal"),
            ("http://[[::1]:1", "parse \"http://[[::1]:1\": invalid IP-literal"),
            ("http://[::1 ]:1", "parse \"http://[::1 ]:1\": invalid character \" \" in host name"),
            ("http://a%41b:1", "parse \"http://a%41b:1\": invalid URL escape \"%41\""),
            ("http://a%:1", "parse \"http://a%:1\": invalid URL escape \"%:1\""),
            ("http://[::1%lo]:1", "parse \"http://[::1%lo]:1\": invalid URL escape \"%lo\""),
            ("http://[::1%2]:1", "parse \"http://[::1%2]:1\": invalid URL escape \"%2\""),
            ("http://[a|b]:1", "parse \"http://[a|b]:1\": invalid character \"|\" in host name"),
            (":1", "parse \":1\": missing protocol scheme"),
            ("-a:1", "parse \"-a:1\": first path segment in URL cannot contain colon"),
            ("a_b:1", "parse \"a_b:1\": first path segment in URL cannot contain colon"),
            ("a.b:1", "URL scheme must be http, https, unix, or unixs: a.b:1"),
            ("/:", "URL scheme must be http, https, unix, or unixs: /:"),
            ("x/y:z", "URL scheme must be http, https, unix, or unixs: x/y:z"),
            ("http://a:1/", "URL must not contain a path: http://a:1/"),
            ("http://a:1/x", "URL must not contain a path: http://a:1/x"),
        ] {
            assert_eq!(parsed(&[text]), Err(problem.to_owned()));
        }
        assert_eq!(parsed(&[]), Err("no valid URLs given".to_owned()));
        let control = parsed(&["http://a\u{1}:1"]).unwrap_err();
        assert!(control.ends_with("net/url: invalid control character in URL"), "{control}");
    }

    /// These texts too.
    #[test]
    fn escapes_in_brackets_are_undone_before_the_host_is_read() {
        for (text, problem) in [
            ("http://[::1%2%255]:1", "parse \"http://[::1%2%255]:1\": invalid URL escape \"%2\""),
            ("http://[::1%a\u{e9}]:1", "parse \"http://[::1%a\u{e9}]:1\": invalid URL escape \"%a\\xc3\""),
            ("http://[::1%25%2f]:1", "parse \"http://[::1%25%2f]:1\": invalid URL escape \"%2f\""),
            ("http://[::1%25%c3]:1", "parse \"http://[::1%25%c3]:1\": invalid URL escape \"%c3\""),
            ("http://[::1%25%00]:1", "parse \"http://[::1%25%00]:1\": invalid URL escape \"%00\""),
            ("http://[::1%25 ]:1", "parse \"http://[::1%25 ]:1\": invalid character \" \" in host name"),
            (
                "http://[::1%25%5d]:1",
                "URL address does not have the form \"host:port\": http://[::1%25%5d]:1",
            ),
            (
                "http://[::1%25%5B]:1",
                "URL address does not have the form \"host:port\": http://[::1%25%5B]:1",
            ),
            (
                "http://[::1%c3%a9]:1",
                "parse \"http://[::1%c3%a9]:1\": invalid host: ParseAddr(\"::1\u{e9}\"): \
                 unexpected character, want colon (at \"\u{e9}\")",
            ),
            (
                "http://[::1%c3]:1",
                "parse \"http://[::1%c3]:1\": invalid host: ParseAddr(\"::1\\xc3\"): \
                 unexpected character, want colon (at \"\\xc3\")",
            ),
            (
                "http://[%c3%a9::1]:1",
                "parse \"http://[%c3%a9::1]:1\": invalid host: ParseAddr(\"\u{e9}::1\"): \
                 each colon-separated field must have at least one digit (at \"\u{e9}::1\")",
            ),
        ] {
            assert_eq!(parsed(&[text]), Err(problem.to_owned()));
        }
    }

    #[test]
    fn urls_are_sorted() {
        for zone in ["http://[fe80::1%25en0]:1", "http://[::1%25%41%20]:1", "http://a%c3%a9:1"] {
            assert_eq!(parsed(&[zone]), Ok(vec![zone.to_owned()]));
        }
        let urls = parsed(&[" http://b:1", "HTTPS://[::1]:2", "unix://x"]).unwrap();
        assert_eq!(urls, ["http://b:1", "https://[::1]:2", "unix://x"]);
        assert_eq!(authority(&urls[1]), "[::1]:2");
    }

    /// etcd 3.7.1 says the same of these flags.
    #[test]
    fn lists_of_urls_are_the_same_by_the_addresses_of_their_names() {
        let mut names = |host: &str| match host {
            "a:1" | "b:1" | "10.0.0.1:1" => Some("10.0.0.1:1".to_owned()),
            "c:1" => Some("10.0.0.2:1".to_owned()),
            _ => None,
        };
        let mut compared = |left: &[&str], right: &[&str]| {
            let owned = |urls: &[&str]| urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>();
            are_same(&owned(left), &owned(right), &mut names)
        };
        assert_eq!(compared(&["http://a:1"], &["http://10.0.0.1:1"]), Ok(()));
        assert_eq!(compared(&["http://b:1", "http://c:1"], &["http://10.0.0.2:1", "http://a:1"]), Ok(()));
        assert_eq!(compared(&["http://unknown:1"], &["http://unknown:1"]), Ok(()));
        let two = ["http://127.0.0.1:7001", "http://127.0.0.1:7003"];
        assert_eq!(
            compared(&two[..1], &two),
            Err("len([\"http://127.0.0.1:7001\"]) != len([\"http://127.0.0.1:7001\" \"http://127.0.0.1:7003\"])"
                .to_owned())
        );
        assert_eq!(
            compared(&two[..1], &two[1..]),
            Err("resolved urls: \"http://127.0.0.1:7001\" != \"http://127.0.0.1:7003\"".to_owned())
        );
        for different in [["http://a:1", "https://a:1"], ["http://a:1", "http://localhost:1"]] {
            assert!(compared(&different[..1], &different[1..]).is_err(), "{different:?}");
        }
    }
}

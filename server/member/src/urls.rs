//! URLs of members, as etcd takes them: a scheme, a host and a port, and nothing else.

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
    let address = authority(text);
    if address.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '}', '|']) {
        return Err(problem("invalid character in host name"));
    }
    let (host, port) = address.rsplit_once(':').ok_or_else(|| UrlError::HostPort(text.to_owned()))?;
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(problem(&format!("invalid port \":{port}\" after host")));
    }
    if host.contains(':') && !(host.starts_with('[') && host.ends_with(']')) {
        return Err(UrlError::HostPort(text.to_owned()));
    }
    if behind.split(['?', '#']).next().is_some_and(|behind| behind.contains('/')) {
        return Err(UrlError::Path(text.to_owned()));
    }
    Ok(format!("{scheme}://{behind}"))
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
            ("http://a:1/", "URL must not contain a path: http://a:1/"),
            ("http://a:1/x", "URL must not contain a path: http://a:1/x"),
        ] {
            assert_eq!(parsed(&[text]), Err(problem.to_owned()));
        }
        assert_eq!(parsed(&[]), Err("no valid URLs given".to_owned()));
    }

    #[test]
    fn urls_are_sorted() {
        let urls = parsed(&[" http://b:1", "HTTPS://[::1]:2", "unix://x"]).unwrap();
        assert_eq!(urls, ["http://b:1", "https://[::1]:2", "unix://x"]);
        assert_eq!(authority(&urls[1]), "[::1]:2");
    }
}

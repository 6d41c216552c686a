//! The tokens of a Rust file, without its comments, strings and the tests at its end, and its
//! comments: as much of the language as looking for names takes.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token<'t> {
    pub line: usize,
    /// A word, `::`, or one character of anything else.
    pub text: &'t str,
}

impl Token<'_> {
    pub(crate) fn is_word(&self) -> bool {
        self.text.starts_with(is_word_start)
    }
}

fn is_word_start(letter: char) -> bool {
    letter.is_ascii_alphabetic() || letter == '_'
}

/// The code before the tests at a file's end.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("\n#[cfg(test)]\nmod tests").next().unwrap_or(text)
}

pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    pieces(without_tests(text)).into_iter().filter(|(_, is_code)| *is_code).map(|(token, _)| token).collect()
}

/// The `//` comments of a file, tests included, each to the end of its line.
pub(crate) fn comments(text: &str) -> Vec<Token<'_>> {
    let is_comment = |(piece, is_code): &(Token<'_>, bool)| !is_code && piece.text.starts_with("//");
    pieces(text).into_iter().filter(is_comment).map(|(comment, _)| comment).collect()
}

/// Everything in a text, and whether it is code.
fn pieces(text: &str) -> Vec<(Token<'_>, bool)> {
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let rest = &text[at..];
        let skipped = skipped(rest);
        let length = skipped.unwrap_or_else(|| match rest {
            _ if rest.starts_with(is_word_start) => word_length(rest),
            _ if rest.starts_with("::") => 2,
            _ => 1,
        });
        found.push((Token { line, text: &rest[..length] }, skipped.is_none()));
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

fn word_length(rest: &str) -> usize {
    rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len())
}

/// Bytes to pass over at the front of `rest`: space, a comment, a string, a character, a lifetime.
fn skipped(rest: &str) -> Option<usize> {
    let end_of =
        |from: usize, end: &str| rest[from..].find(end).map_or(rest.len(), |found| from + found + end.len());
    if rest.starts_with([' ', '\n', '\t']) {
        Some(1)
    } else if rest.starts_with("//") {
        Some(end_of(2, "\n"))
    } else if rest.starts_with("/*") {
        Some(end_of(2, "*/"))
    } else if let Some(hashes) = raw_string(rest) {
        let start = rest.find('"').unwrap_or(0) + 1;
        Some(end_of(start, &format!("\"{}", "#".repeat(hashes))))
    } else if rest.starts_with('"') || rest.starts_with("b\"") {
        let start = rest.find('"').unwrap_or(0) + 1;
        Some(start + string_length(&rest[start..]))
    } else if let Some(inside) = rest.strip_prefix("b'") {
        Some(2 + character_length(inside))
    } else if let Some(after) = rest.strip_prefix('\'') {
        let is_lifetime = after.starts_with(is_word_start) && !after[1..].starts_with('\'');
        Some(1 + if is_lifetime { word_length(after) } else { character_length(after) })
    } else {
        None
    }
}

/// The number of hashes of a raw string that begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn string_length(inside: &str) -> usize {
    let mut bytes = inside.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return at + 1,
            _ => {}
        }
    }
    inside.len()
}

fn character_length(inside: &str) -> usize {
    let escaped = if inside.starts_with('\\') { 2 } else { 1 };
    inside[escaped..].find('\'').map_or(inside.len(), |end| escaped + end + 1)
}

#[test]
fn names_in_strings_and_comments_are_none() {
    let text = concat!(
        "use a::{b}; // c\n",
        "fn d<'e>() -> &'e str { \"f\\\"g\"; r#\"h\"#; 'i'; '\\''; b\"j\" }\n",
        "#[cfg(test)]\nmod tests { k }"
    );
    let words: Vec<&str> =
        tokens(text).iter().filter(|token| token.is_word()).map(|token| token.text).collect();
    assert_eq!(words, ["use", "a", "b", "fn", "d", "str"]);
    assert_eq!(tokens(text).iter().find(|token| token.text == "str").unwrap().line, 2);
}

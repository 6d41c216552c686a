//! Comments name their subject: the thing that a sentence is about, and no pronoun in its place.

use crate::lexer::comments;
use crate::{assert_none, sources};

/// Words that stand where a noun belongs. With a capital letter they begin a sentence.
const PRONOUNS: &[&str] = &["Whoever", "Who", "Nobody", "Somebody", "Anybody", "Whatever", "What"];

/// The line and the pronoun of each sentence of a comment that begins with one.
fn nameless(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for comment in comments(text) {
        let words = comment.text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        found.extend(words.filter(|word| PRONOUNS.contains(word)).map(|word| (comment.line, word)));
    }
    found
}

#[test]
fn comments_name_their_subject() {
    let mut problems = Vec::new();
    for (name, text) in sources() {
        let found = nameless(&text).into_iter();
        problems.extend(found.map(|(line, word)| format!("{name}:{line}: a sentence begins with {word}")));
    }
    assert_none(&problems, "comments name their subject");
}

#[test]
fn pronouns_are_found_in_comments_alone() {
    let text = concat!(
        "//! It is told. What is left waits.\n",
        "/// Who asks.\n",
        "fn a() { // Nobody calls it\n",
        "    // It says what it does to whoever asks,\n",
        "    // in `the_What`.\n",
        "    \"// Somebody\"; r#\"\n// Anybody\n\"#;\n",
        "}\n",
        "#[cfg(test)]\nmod tests {\n    // It is late.\n    // Whatever.\n}\n"
    );
    assert_eq!(nameless(text), [(1, "What"), (2, "Who"), (3, "Nobody"), (13, "Whatever")]);
}

//! Counts hard-to-read English: clauses that begin with a "what" or a "who" without a noun, and everyday words in the place of terms.

use regex::Regex;
use std::sync::LazyLock;

/// The patterns, each with its name.
static PATTERNS: LazyLock<Vec<(&str, Regex)>> = LazyLock::new(|| {
    let patterns = [
        (
            "who without a noun",
            r"(?m)(?:(?:^|[.;:,(]\s+)[Ww]ho (?:has|is|does|may|was|had|\w+s)\b)|\b(?:for|of|than|to|by|from|with|as|is|at|and|but|or|on|all) who\b",
        ),
        (
            "what without a noun",
            r"(?m)(?:^|[.;:]\s+)What (?:is|was|has|are|had|does|a|the|they|it|we|both|every|all|who|cannot|\w+s)\b|\b(?:of|for|from|by|with|to|than|as|in|on|into|but) what\b",
        ),
        (
            "words to avoid",
            r"\bin vain\b|\bnow and then\b|\banew\b|\bamid\b|\bthereof\b|\bbut for\b|\bthere is none\b|\bhas none\b|\bare none\b|\bso (?:many|few) \w+s?\b|\bof one's own\b|\berrands?\b",
        ),
    ];
    patterns.into_iter().filter_map(|(name, text)| Some((name, Regex::new(text).ok()?))).collect()
});

/// Occurrences in a text.
#[derive(Debug, Default)]
pub struct Count {
    /// Words of the text.
    pub words: usize,
    /// Each occurrence with the name of its pattern.
    pub found: Vec<String>,
}

impl Count {
    /// Occurrences in 10 000 words.
    #[must_use]
    pub fn per_10_000(&self) -> f64 {
        10_000.0 * self.found.len() as f64 / self.words.max(1) as f64
    }

    /// Adds the count of a text; `place` names it in the occurrences.
    pub fn add(&mut self, place: &str, text: &str) {
        static CODE: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"`[^`]*`").ok());
        static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[A-Za-z][A-Za-z'-]*").ok());
        let text = CODE.as_ref().map_or(text.into(), |code| code.replace_all(text, "X"));
        self.words += WORD.as_ref().map_or(0, |word| word.find_iter(&text).count());
        for (name, pattern) in PATTERNS.iter() {
            for hit in pattern.find_iter(&text) {
                let end =
                    text[hit.end()..].char_indices().nth(40).map_or(text.len(), |(at, _)| hit.end() + at);
                self.found
                    .push(format!("{place}: {name}: {}", text[hit.start()..end].trim().replace('\n', " ")));
            }
        }
    }
}

/// The comments of a Rust source: the text of one block in one line, code as a line break.
#[must_use]
pub fn comments(source: &str) -> String {
    let mut text = String::new();
    for line in source.lines() {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => {
                text.push_str(comment.trim_start_matches(['/', '!']).trim_start());
                text.push(' ');
            }
            None => text.push('\n'),
        }
    }
    text
}

/// The prose of a page: neither blocks of code nor tables.
#[must_use]
pub fn sentences(page: &str) -> String {
    let (mut text, mut code) = (String::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code && !line.starts_with('|') {
            text.push_str(line);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_found_in_comments_and_pages() {
        assert_eq!(PATTERNS.len(), 3);
        let mut count = Count::default();
        count.add(
            "a",
            &comments(
                "/// What is sent is lost.\nfn f() {}\n// A call for who\n// waits in vain, `in vain`.\n",
            ),
        );
        assert_eq!(count.found.len(), 3, "{:?}", count.found);
        let mut count = Count::default();
        count.add("b", &sentences("Good.\n```text\nin vain\n```\n| in vain |\n\nThe server has none.\n"));
        assert_eq!(count.found.len(), 1, "{:?}", count.found);
    }
}

//! Spelling suggestions: the valid word nearest to a misspelt one.

/// The longest word to compare. Longer words are not typing errors and would take long to compare.
const LONGEST: usize = 64;

/// Returns the candidate with the smallest edit distance (wrong, missing, surplus or swapped letters), if the
/// distance is small enough for a typing error (at most one letter in three).
///
/// Case and the difference between `-` and `_` are ignored. Of equal candidates the first is returned.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > LONGEST {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    candidates
        .into_iter()
        .map(|candidate| {
            let other = plain(candidate);
            let allowed = (word.chars().count().max(other.chars().count()) / 3).max(1);
            (strsim::osa_distance(&word, &other), allowed, candidate)
        })
        .filter(|(distance, allowed, _)| distance <= allowed)
        .min_by_key(|(distance, ..)| *distance)
        .map(|(.., candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn typing_errors_are_near_and_other_words_are_not() {
        let words = ["latency", "throughput", "res_util"];
        for (word, meant) in [
            ("latancy", Some("latency")),
            ("Latency", Some("latency")),
            ("throughptu", Some("throughput")),
            ("res-util", Some("res_util")),
            ("resutil", Some("res_util")),
            ("fast", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, words), meant, "{word}");
        }
        assert_eq!(nearest("of", ["on", "off"]), Some("on"));
        assert_eq!(nearest(&"latency".repeat(100), words), None);
    }
}

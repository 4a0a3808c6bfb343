//! The valid word that a misspelt one was probably meant to be.

/// Longer words than this are nobody's typing errors, and would take long to compare.
const LONGEST: usize = 64;

/// The candidate with the fewest letters wrong, missing, too many or swapped, if those are few enough (at most one in
/// three) to take it for a typing error. Case, and `-` for `_`, do not count. Of equals the first.
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

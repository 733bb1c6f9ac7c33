//! [`go_bool()`]: the texts of Booleans in Go.

/// Returns the Boolean of the texts that Go's `strconv.ParseBool` accepts, and `None` for others.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_bool_accepts_the_spellings_of_parse_bool_and_no_others() {
        for text in ["1", "t", "T", "TRUE", "true", "True"] {
            assert_eq!(go_bool(text), Some(true), "{text}");
        }
        for text in ["0", "f", "F", "FALSE", "false", "False"] {
            assert_eq!(go_bool(text), Some(false), "{text}");
        }
        for text in ["", " true", "tRUE", "yes", "on", "2"] {
            assert_eq!(go_bool(text), None, "{text}");
        }
    }
}

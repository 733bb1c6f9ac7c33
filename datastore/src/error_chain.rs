//! What an error says together with its causes.

use std::error::Error;

/// An error and its causes, each said once.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    for cause in causes(error) {
        let said = cause.to_string();
        if said == "transport error" || text.contains(&said) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&said);
    }
    text
}

pub(crate) fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| <dyn Error>::source(*error))
}

//! Stored pairs of a path and a value: ranges of them, and lists of writes to them.

use libcalico::store::{Freshness, Range, Revision, StoreError, Write, WriteError};

pub(crate) fn prefix_range(prefix: &str) -> Range {
    Range {
        kind: "",
        path: prefix.into(),
        is_prefix: true,
        keys_only: false,
        freshness: Freshness::Latest,
    }
}

/// Returns the first text, in byte order, after all texts that begin with `prefix`.
pub(crate) fn end_of_prefix(prefix: &str) -> Option<String> {
    let mut end: Vec<char> = prefix.chars().collect();
    while let Some(last) = end.pop() {
        if let Some(next) = (last..=char::MAX).nth(1) {
            end.push(next);
            return Some(end.into_iter().collect());
        }
    }
    None
}

/// Rejects a list that writes one path twice. The writes of a transaction have no order.
pub(crate) fn check_distinct(writes: &[Write]) -> Result<(), WriteError> {
    for (index, write) in writes.iter().enumerate() {
        if writes[..index]
            .iter()
            .any(|earlier| earlier.path == write.path)
        {
            let text = format!(
                "two writes to {} in one transaction; send two transactions",
                write.key
            );
            return Err(WriteError {
                index,
                applied: 0,
                cause: StoreError::Other(text),
            });
        }
    }
    Ok(())
}

/// Returns, once per write, the revision that `transaction` returns. Does not await `transaction`
/// if there are no writes or if a path is written twice.
pub(crate) async fn write_in_transaction(
    writes: &[Write],
    transaction: impl Future<Output = Result<i64, WriteError>>,
) -> Result<Vec<Revision>, WriteError> {
    check_distinct(writes)?;
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    let revision = transaction.await?;
    Ok(vec![Revision(revision.to_string()); writes.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_prefix_is_the_next_string() {
        assert_eq!(end_of_prefix("/calico/").as_deref(), Some("/calico0"));
        assert_eq!(end_of_prefix("a\u{10ffff}").as_deref(), Some("b"));
        assert_eq!(end_of_prefix("\u{d7ff}").as_deref(), Some("\u{e000}"));
        assert_eq!(end_of_prefix("\u{10ffff}"), None);
        assert_eq!(end_of_prefix(""), None);
    }
}

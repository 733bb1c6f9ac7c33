//! [`ListReader`]: splits a list into its items while the response arrives.
//!
//! A list of all blocks of a large cluster has hundreds of megabytes if the API server does not
//! page it. The reader stores an item only until the item's end arrives.

use http_body_util::BodyExt;
use kube::client::Body;
use serde::de::Error;
use serde_json::Value;

use super::error::RequestError;

/// Maximum length in bytes of the text around the items of a list: kind, revision and token of the
/// next page.
const MAX_FRAME_BYTES: usize = 1 << 16;
/// Maximum length in bytes of an item: ten times the size of the largest possible block.
const MAX_ITEM_BYTES: usize = 1 << 24;

pub(super) struct ListReader<'t> {
    on_item: &'t mut (dyn FnMut(&[u8]) -> serde_json::Result<()> + Send),
    splitter: ListSplitter,
}

#[derive(Default)]
struct ListSplitter {
    frame: Vec<u8>,
    /// The first part of an item whose end has not arrived.
    item: Vec<u8>,
    section: Section,
    /// The number of open braces and brackets.
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    /// Start and end of the last string in the frame.
    string: (usize, usize),
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Section {
    #[default]
    Frame,
    BetweenItems,
    Item,
}

impl<'t> ListReader<'t> {
    /// Creates a reader that passes each item to `on_item`, even if the response breaks off later.
    pub(super) fn new(
        on_item: &'t mut (dyn FnMut(&[u8]) -> serde_json::Result<()> + Send),
    ) -> Self {
        ListReader {
            on_item,
            splitter: ListSplitter::default(),
        }
    }

    pub(super) async fn read(&mut self, mut body: Body) -> Result<Value, RequestError> {
        self.splitter = ListSplitter::default();
        while let Some(frame) = body.frame().await {
            if let Some(part) = frame?.data_ref() {
                self.consume(part).map_err(unreadable)?;
            }
        }
        serde_json::from_slice(&self.splitter.frame).map_err(unreadable)
    }

    fn consume(&mut self, part: &[u8]) -> serde_json::Result<()> {
        let ListReader { on_item, splitter } = self;
        let mut rest = part;
        while !rest.is_empty() {
            let consumed = match splitter.section {
                Section::Frame => splitter.consume_frame(rest)?,
                Section::BetweenItems => splitter.consume_separators(rest)?,
                Section::Item => match splitter.find_item_end(rest) {
                    Some(length) if splitter.item.is_empty() => {
                        on_item(&rest[..length])?;
                        length
                    }
                    Some(length) => {
                        splitter.item.extend_from_slice(&rest[..length]);
                        on_item(&splitter.item)?;
                        splitter.item.clear();
                        length
                    }
                    None => {
                        splitter.item.extend_from_slice(rest);
                        if splitter.item.len() > MAX_ITEM_BYTES {
                            let message = format!("an item has more than {MAX_ITEM_BYTES} bytes");
                            return Err(serde_json::Error::custom(message));
                        }
                        rest.len()
                    }
                },
            };
            rest = &rest[consumed..];
        }
        Ok(())
    }
}

impl ListSplitter {
    /// Consumes text up to the bracket that opens the list of items. Returns the number of consumed
    /// bytes.
    fn consume_frame(&mut self, text: &[u8]) -> serde_json::Result<usize> {
        for (index, byte) in text.iter().enumerate() {
            self.frame.push(*byte);
            if self.in_string {
                self.step_in_string(*byte);
                self.string.1 = self.frame.len() - 1;
                continue;
            }
            match byte {
                b'"' => {
                    self.in_string = true;
                    self.string = (self.frame.len(), self.frame.len());
                }
                // An array at this depth is the value of the last string, which is its key.
                b'[' if self.depth == 1
                    && &self.frame[self.string.0..self.string.1] == b"items" =>
                {
                    self.section = Section::BetweenItems;
                    return Ok(index + 1);
                }
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        if self.frame.len() > MAX_FRAME_BYTES {
            let message =
                format!("more than {MAX_FRAME_BYTES} bytes outside the items of the list");
            return Err(serde_json::Error::custom(message));
        }
        Ok(text.len())
    }

    fn consume_separators(&mut self, text: &[u8]) -> serde_json::Result<usize> {
        let is_separator = |byte: &u8| *byte == b',' || byte.is_ascii_whitespace();
        let Some(next) = text.iter().position(|byte| !is_separator(byte)) else {
            return Ok(text.len());
        };
        match text[next] {
            b'{' => {
                (self.section, self.depth) = (Section::Item, 0);
                Ok(next)
            }
            b']' => {
                (self.section, self.depth) = (Section::Frame, 1);
                self.frame.push(b']');
                Ok(next + 1)
            }
            _ => Err(serde_json::Error::custom("expected an object in the list")),
        }
    }

    /// Returns the number of bytes up to the end of the present item, or `None` if it does not end
    /// in `text`. Brackets are not counted, because the item's decoder detects mismatches.
    fn find_item_end(&mut self, text: &[u8]) -> Option<usize> {
        for (index, byte) in text.iter().enumerate() {
            if self.in_string {
                self.step_in_string(*byte);
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' => self.depth += 1,
                b'}' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.section = Section::BetweenItems;
                        return Some(index + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn step_in_string(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' => self.is_escaped = true,
            b'"' => self.in_string = false,
            _ => {}
        }
    }
}

fn unreadable(error: serde_json::Error) -> RequestError {
    RequestError::Unreadable(format!("cannot read the answer: {error}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Reads `text` in parts of `size` bytes. Returns the items and the list without them.
    fn read(text: &str, size: usize) -> (Vec<Value>, serde_json::Result<Value>) {
        let mut items = Vec::new();
        let mut on_item = |item: &[u8]| {
            items.push(serde_json::from_slice(item)?);
            Ok(())
        };
        let mut reader = ListReader::new(&mut on_item);
        let consumed = text
            .as_bytes()
            .chunks(size)
            .try_for_each(|part| reader.consume(part));
        let frame = consumed.and_then(|()| serde_json::from_slice(&reader.splitter.frame));
        (items, frame)
    }

    #[test]
    fn list_items_are_found_at_any_chunk_boundary() {
        let items = json!([
            {
                "metadata": {"name": "a"},
                "spec": {"text": "}]\"\\", "items": [{"items": []}], "list": [[1], []]},
            },
            {},
            {"\\\"{": {"b": "\u{1f600}"}},
        ]);
        let inner = items
            .as_array()
            .unwrap()
            .iter()
            .map(Value::to_string)
            .collect::<Vec<_>>();
        let around = r#""apiVersion":"v1","note":"items","other":[{"items":[1]}],"metadata":{"items":[2],"continue":"c{"}"#;
        let expected: Value = serde_json::from_str(&format!(r#"{{{around},"items":[]}}"#)).unwrap();
        for space in ["", "\n "] {
            let list = format!(
                "{space}\"items\"{space}:{space}[{space}{}{space}]",
                inner.join(&format!("{space},"))
            );
            for text in [
                format!("{{{list},{around}}}"),
                format!("{{{around},{list}}}"),
            ] {
                for size in [1, 2, 3, 7, 64, text.len()] {
                    let (read_items, frame) = read(&text, size);
                    assert_eq!(Value::Array(read_items), items, "{text} in parts of {size}");
                    assert_eq!(frame.unwrap(), expected, "{text} in parts of {size}");
                }
            }
        }
    }

    #[test]
    fn invalid_streamed_lists_are_rejected() {
        for text in [
            r#"{"items":[1]}"#,
            r#"{"items":[null]}"#,
            r#"{"items":[{}"#,
            r#"{"items":[{]}]}"#,
            "<html>",
            "{}x",
        ] {
            let (_, frame) = read(text, 3);
            assert!(frame.is_err(), "{text}");
        }
        for text in [r#"{"items":null}"#, "{}", r#"{"kind":"Status"}"#] {
            assert!(read(text, 3).1.is_ok(), "{text}");
        }
    }

    #[test]
    fn oversized_list_item_is_rejected() {
        let mut count = 0;
        let mut on_item = |_: &[u8]| {
            count += 1;
            Ok(())
        };
        for begin in [r#"{"a":""#, r#"{"items":[{"a":""#] {
            let mut reader = ListReader::new(&mut on_item);
            reader.consume(begin.as_bytes()).unwrap();
            let endless =
                (0..2 * MAX_ITEM_BYTES / 4096).try_for_each(|_| reader.consume(&[b'x'; 4096]));
            assert!(
                endless.unwrap_err().to_string().contains("more than"),
                "{begin}"
            );
        }
        assert_eq!(count, 0);
    }

    #[test]
    fn unreadable_list_item_ends_the_stream_with_an_error() {
        let mut on_item = |item: &[u8]| serde_json::from_slice::<Value>(item).map(drop);
        let mut reader = ListReader::new(&mut on_item);
        assert!(
            reader
                .consume(br#"{"items":[{"a":1},{"a" 2},{"a":3}]}"#)
                .is_err()
        );
    }
}

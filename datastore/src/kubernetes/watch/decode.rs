//! [`Decode`]: decodes the text of an object into the value that the watch delivers.

use crate::watch::Change;

/// A decoder of the objects of one kind. Each call gets the JSON of one object.
pub trait Decode: Send + 'static {
    /// The value that the watch delivers for an object.
    type Value: Send + 'static;
    /// The key of an object.
    type Key: Send + 'static;

    /// Returns the kind, for logs.
    fn kind(&self) -> &'static str;

    /// Returns the kind that the API server uses in a list of these objects. Called after [`Decode::collection`].
    fn object_kind(&self) -> &'static str {
        self.kind()
    }

    /// Returns the URL path of all objects.
    fn collection(&mut self) -> impl Future<Output = Result<String, String>> + Send;

    /// Decodes an existing object. Returns `None` for an object that does not belong to the watch.
    fn put(&mut self, object: &str) -> Option<Change<Self::Value, Self::Key>>;

    /// Returns the key of an object, even if other parts of it are invalid.
    fn key(&mut self, object: &str) -> Option<Self::Key>;

    /// Handles a response that the server does not have the collection.
    fn is_missing(&mut self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

//! The content of a new file.

use crate::error::Result;
use crate::write;
use std::collections::BTreeMap;

/// A group to write, with its attributes and everything below it. The root group makes a file:
/// [`to_bytes`](GroupBuilder::to_bytes).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupBuilder {
    pub(crate) attributes: Vec<(String, AttributeValue)>,
    pub(crate) members: BTreeMap<String, NewMember>,
}

/// A member of a group to write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NewMember {
    Group(GroupBuilder),
    Dataset { dims: Vec<usize>, values: Values },
}

/// The elements of a dataset to write, in row-major order.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Values {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 32-bit integers.
    I32(Vec<i32>),
}

impl Values {
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::F32(values) => values.len(),
            Values::I32(values) => values.len(),
        }
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Values {
        Values::F32(values)
    }
}

impl From<Vec<i32>> for Values {
    fn from(values: Vec<i32>) -> Values {
        Values::I32(values)
    }
}

/// The value of an attribute to write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// One string.
    String(String),
    /// A list of strings.
    Strings(Vec<String>),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> AttributeValue {
        AttributeValue::String(text.into())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> AttributeValue {
        AttributeValue::String(text)
    }
}

impl From<Vec<String>> for AttributeValue {
    fn from(texts: Vec<String>) -> AttributeValue {
        AttributeValue::Strings(texts)
    }
}

impl GroupBuilder {
    /// An empty group.
    pub fn new() -> GroupBuilder {
        GroupBuilder::default()
    }

    /// Adds an attribute to this group.
    pub fn attribute(&mut self, name: &str, value: impl Into<AttributeValue>) {
        self.attributes.push((name.into(), value.into()));
    }

    /// The group at a path, created if necessary. Replaces a dataset on the path. An empty path is this
    /// group itself.
    pub fn group(&mut self, path: &str) -> &mut GroupBuilder {
        let mut here = self;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let new = || NewMember::Group(GroupBuilder::new());
            let member = here.members.entry(part.into()).or_insert_with(new);
            if matches!(member, NewMember::Dataset { .. }) {
                *member = new();
            }
            let NewMember::Group(next) = member else { unreachable!("it was just made") };
            here = next;
        }
        here
    }

    /// Stores an array at a path, with the groups on the path. Replaces what is there.
    pub fn dataset(&mut self, path: &str, dims: &[usize], values: impl Into<Values>) {
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let member = NewMember::Dataset { dims: dims.to_vec(), values: values.into() };
        self.group(parent).members.insert(name.into(), member);
    }

    /// The bytes of a file with this root group.
    ///
    /// # Errors
    /// [`Error::NotWritable`](crate::Error::NotWritable): a dataset whose shape does not fit its values,
    /// more than 32 axes, an attribute larger than 64 KiB, more than 65534 attributes, or a name that is
    /// empty or contains a zero byte.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        write::file(self)
    }
}

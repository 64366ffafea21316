//! Groups and their members.

use crate::attribute::AttributeNode;
use crate::dataset::DatasetNode;
use crate::{Attribute, Dataset, Error, File, Result};
use std::collections::BTreeMap;

/// A group as it is parsed.
#[derive(Debug)]
pub(crate) struct GroupNode {
    pub attributes: BTreeMap<String, AttributeNode>,
    pub members: BTreeMap<String, Node>,
}

/// A member of a group as it is parsed.
#[derive(Debug)]
pub(crate) enum Node {
    Group(GroupNode),
    Dataset(DatasetNode),
    Link,
}

impl Node {
    pub fn kind(&self) -> &'static str {
        match self {
            Node::Group(_) => "a group",
            Node::Dataset(_) => "a dataset",
            Node::Link => "a link to elsewhere",
        }
    }
}

/// A group of a file: named members, and attributes.
#[derive(Clone, Copy, Debug)]
pub struct Group<'f> {
    file: &'f File,
    node: &'f GroupNode,
}

/// A member of a [`Group`].
#[derive(Clone, Copy, Debug)]
pub enum Member<'f> {
    /// Another group.
    Group(Group<'f>),
    /// An array.
    Dataset(Dataset<'f>),
    /// A soft or external link, which is never followed.
    Link,
}

impl<'f> Group<'f> {
    pub(crate) fn new(file: &'f File, node: &'f GroupNode) -> Group<'f> {
        Group { file, node }
    }

    /// The group at a path below this one. An empty path is this group itself.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no group at the path.
    pub fn group(self, path: &str) -> Result<Group<'f>> {
        match self.find(path) {
            None if path.is_empty() => Ok(self),
            Some(Node::Group(node)) => Ok(Group::new(self.file, node)),
            other => Err(not_found("group", path, other)),
        }
    }

    /// The dataset at a path below this group.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no dataset at the path.
    pub fn dataset(self, path: &str) -> Result<Dataset<'f>> {
        match self.find(path) {
            Some(Node::Dataset(node)) => Ok(Dataset::new(self.file, node)),
            other => Err(not_found("dataset", path, other)),
        }
    }

    /// An attribute of this group, by name.
    pub fn attribute(self, name: &str) -> Option<Attribute<'f>> {
        self.node.attributes.get(name).map(|node| Attribute::new(self.file, node))
    }

    /// The attributes of this group with their names, in order of the names.
    pub fn attributes(self) -> impl Iterator<Item = (&'f str, Attribute<'f>)> {
        let attribute = move |node| Attribute::new(self.file, node);
        self.node.attributes.iter().map(move |(name, node)| (name.as_str(), attribute(node)))
    }

    /// The members of this group with their names, in order of the names.
    pub fn members(self) -> impl ExactSizeIterator<Item = (&'f str, Member<'f>)> {
        let member = move |node: &'f Node| match node {
            Node::Group(group) => Member::Group(Group::new(self.file, group)),
            Node::Dataset(dataset) => Member::Dataset(Dataset::new(self.file, dataset)),
            Node::Link => Member::Link,
        };
        self.node.members.iter().map(move |(name, node)| (name.as_str(), member(node)))
    }

    /// All datasets below this group with their paths, in order of the names.
    pub fn datasets(self) -> Vec<(String, Dataset<'f>)> {
        let mut out = vec![];
        for (name, member) in self.members() {
            match member {
                Member::Dataset(dataset) => out.push((name.into(), dataset)),
                Member::Group(group) => {
                    let below = group.datasets().into_iter();
                    out.extend(below.map(|(path, dataset)| (format!("{name}/{path}"), dataset)));
                }
                Member::Link => {}
            }
        }
        out
    }

    fn find(self, path: &str) -> Option<&'f Node> {
        let mut group = self.node;
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let node = group.members.get(part)?;
            match node {
                _ if parts.peek().is_none() => return Some(node),
                Node::Group(next) => group = next,
                _ => return None,
            }
        }
        None
    }
}

fn not_found(expected: &'static str, path: &str, found: Option<&Node>) -> Error {
    let found = found.map_or("nothing", Node::kind);
    Error::NotFound { expected, path: path.into(), found }
}

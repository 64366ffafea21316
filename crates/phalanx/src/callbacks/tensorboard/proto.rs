//! The protocol buffer messages of event files, written by hand.
//!
//! Field numbers are those of TensorFlow's `event.proto`, `summary.proto` and `histogram.proto`.

/// A message under construction. Fields may be in any order; absent fields have their defaults.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

/// Wire types.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Seven bits per byte, lowest first.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    pub(super) fn int(mut self, field: u64, value: i64) -> Message {
        self.key(field, VARINT);
        self.varint(value.cast_unsigned());
        self
    }

    pub(super) fn double(mut self, field: u64, value: f64) -> Message {
        self.key(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn float(mut self, field: u64, value: f32) -> Message {
        self.key(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn bytes(mut self, field: u64, bytes: &[u8]) -> Message {
        self.key(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    pub(super) fn text(self, field: u64, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u64, message: &Message) -> Message {
        self.bytes(field, &message.0)
    }

    /// A packed list.
    fn doubles(self, field: u64, values: &[f64]) -> Message {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.bytes(field, &bytes)
    }
}

/// An `Event` with a time, in seconds since 1970, and a step.
pub(super) fn event(wall_time: f64, step: u64) -> Message {
    Message::new().double(1, wall_time).int(2, i64::try_from(step).unwrap_or(i64::MAX))
}

/// The `Event` that opens a file.
pub(super) fn file_version(wall_time: f64) -> Message {
    Message::new().double(1, wall_time).text(3, "brain.Event:2")
}

/// `Event.graph_def`.
pub(super) fn graph(event: Message, graph: &Message) -> Message {
    event.message(4, graph)
}

/// `Event.summary` of these values.
pub(super) fn summary(event: Message, values: &[Message]) -> Message {
    let summary = values.iter().fold(Message::new(), |summary, value| summary.message(1, value));
    event.message(5, &summary)
}

/// `Summary.Value` of a number.
pub(super) fn scalar(tag: &str, value: f64) -> Message {
    Message::new().text(1, tag).float(2, value as f32)
}

/// A `Summary.Value` with a histogram of 30 equal ranges, as in Keras. NaN and infinite values are ignored.
pub(super) fn histogram(tag: &str, values: &[f32]) -> Message {
    const BUCKETS: usize = 30;
    let finite = || values.iter().filter(|v| v.is_finite()).map(|v| f64::from(*v));
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    let (mut count, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for v in finite() {
        (least, most) = (least.min(v), most.max(v));
        (count, sum, squares) = (count + 1.0, sum + v, squares + v * v);
    }
    let (mut limits, mut counts) = (vec![], vec![]);
    if count == 0.0 {
        (least, most) = (0.0, 0.0);
    } else if least == most {
        (limits, counts) = (vec![most], vec![count]);
    } else {
        let width = (most - least) / BUCKETS as f64;
        limits = (1..BUCKETS).map(|i| least + width * i as f64).chain([most]).collect();
        counts = vec![0.0; BUCKETS];
        for v in finite() {
            counts[(((v - least) / width) as usize).min(BUCKETS - 1)] += 1.0;
        }
    }
    let histogram = Message::new()
        .double(1, least)
        .double(2, most)
        .double(3, count)
        .double(4, sum)
        .double(5, squares)
        .doubles(6, &limits)
        .doubles(7, &counts);
    Message::new().text(1, tag).message(5, &histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_protocol_buffers_are() {
        // Examples from the documentation of the format, and negative numbers.
        assert_eq!(Message::new().int(1, 150).as_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().text(2, "testing").as_bytes(), b"\x12\x07testing");
        let inner = Message::new().int(1, 150);
        assert_eq!(Message::new().message(3, &inner).as_bytes(), [0x1a, 3, 0x08, 0x96, 0x01]);
        let minus = Message::new().int(1, -1);
        assert_eq!(minus.as_bytes(), [&[0x08][..], &[0xff; 9], &[0x01]].concat());
        assert_eq!(Message::new().float(2, 1.0).as_bytes(), [0x15, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::new().double(1, 1.0).as_bytes(), [9, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }

    #[test]
    fn odd_histograms_have_no_ranges_to_divide() {
        let len = |values: &[f32]| histogram("h", values).as_bytes().len();
        assert_eq!(len(&[]), len(&[f32::NAN, f32::INFINITY]));
        assert_eq!(len(&[3.0; 7]), len(&[]) + 2 * 8);
        assert_eq!(len(&[1.0, 2.0]), len(&[f32::MIN, f32::MAX, f32::NAN]));
    }
}

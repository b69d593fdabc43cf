//! Mutates inputs by the structure of their format.

use std::ops::Range;

use crate::json;
use crate::random::Random;

/// The maximum number of bytes of an input.
pub const INPUT_LIMIT: usize = 64 * 1024;

/// The structure of an input, which decides how it is mutated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Bytes with numbers of fixed width and length prefixes.
    Binary,
    /// Text of words and punctuation.
    Text,
    /// Text whose lines and indentation have a meaning, such as YAML.
    Lines,
    /// A JSON value.
    Json,
}

/// Characters that parsers tend to confuse.
const ODD: &[&str] = &[
    "\0",
    "\n",
    "\r\n",
    "\t",
    "\u{1b}[2J",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\u{301}",
    "\u{200b}",
    "\u{2028}",
    "\u{202e}",
    "\u{feff}",
    "\u{fffd}",
    "\u{1f980}",
    "\u{10ffff}",
    "ß",
    "İ",
    "ſ",
    "\"",
    "'",
    "\\",
    "\\u0000",
    "\\ud800",
    "${",
    "${A:-",
    "}",
    "{{",
    "[[",
    "((",
    "- ",
    ": ",
    "#",
    "&a",
    "*a",
    "<<",
    "!!",
    "|",
    ">",
    "%",
    "-0",
    "1e309",
    "-1",
    "0",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "NaN",
    "1_0",
    "0x1f",
    "null",
    "~",
    "true",
    "1969-12-31T23:59:59Z",
    "9999-12-31T23:59:60Z",
    "-009999-01-01T00:00:00Z",
    "99999999999d",
];

/// Numbers at the edges of types.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX - 1,
    u64::MAX,
];

/// The material of mutations.
pub(crate) struct Material<'a> {
    pub(crate) corpus: &'a [Vec<u8>],
    pub(crate) words: &'a [Vec<u8>],
    pub(crate) shape: Shape,
}

impl Material<'_> {
    /// Returns the input of a seed.
    pub(crate) fn input(&self, seed: u64) -> Vec<u8> {
        let mut random = Random::new(seed);
        let mut input = random.pick(self.corpus).cloned().unwrap_or_default();
        // Few changes, mostly: many of them make an input that is refused at its first byte.
        let mut left = 1 + random.below(3);
        if random.one_in(4) {
            left += random.below(12);
        }
        for _ in 0..left {
            // One in eight is a change of bytes, which breaks the structure.
            match self.shape {
                _ if random.one_in(8) => self.bytes(&mut random, &mut input),
                Shape::Binary => self.bytes(&mut random, &mut input),
                Shape::Text => self.text(&mut random, &mut input),
                Shape::Lines if random.one_in(2) => self.lines(&mut random, &mut input),
                Shape::Lines => self.text(&mut random, &mut input),
                Shape::Json => match json::mutate(&mut random, &input, self.words) {
                    Some(changed) => input = changed,
                    None => self.text(&mut random, &mut input),
                },
            }
            input.truncate(INPUT_LIMIT);
        }
        input
    }

    fn word(&self, random: &mut Random) -> Vec<u8> {
        match random.pick(self.words) {
            Some(word) if !random.one_in(3) => word.clone(),
            _ => random.pick(ODD).map(|odd| odd.as_bytes().to_vec()).unwrap_or_default(),
        }
    }

    /// Returns a part of another input.
    fn foreign(&self, random: &mut Random) -> Vec<u8> {
        let other = random.pick(self.corpus).map_or(&[][..], Vec::as_slice);
        other[range(random, other.len())].to_vec()
    }

    fn bytes(&self, random: &mut Random, input: &mut Vec<u8>) {
        let at = random.below(input.len() + 1);
        match random.below(9) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.number() as u8,
            2 => input.truncate(at),
            3 => drop(input.drain(range(random, input.len()))),
            4 => {
                let copied = input[range(random, input.len())].to_vec();
                insert(input, at, &copied);
            }
            5 => insert(input, at, &self.foreign(random)),
            6 => insert(input, at, &self.word(random)),
            7 => repeat(random, input),
            // A number of fixed width, at its place or near the value that stood there.
            _ => {
                let width = [1, 2, 4, 8][random.below(4)];
                let Some(place) = input.get_mut(at..at + width) else { return };
                let number = match random.below(3) {
                    0 => random.number(),
                    _ => random.pick(EDGES).copied().unwrap_or_default(),
                };
                match random.one_in(3) {
                    true => place.copy_from_slice(&number.to_be_bytes()[8 - width..]),
                    false => place.copy_from_slice(&number.to_le_bytes()[..width]),
                }
            }
        }
    }

    fn text(&self, random: &mut Random, input: &mut Vec<u8>) {
        let tokens = tokens(input);
        let Some(token) = random.pick(&tokens).cloned() else { return *input = self.word(random) };
        match random.below(7) {
            0 => drop(input.drain(token)),
            1 => {
                let copied = input[token.clone()].to_vec();
                insert(input, token.end, &copied);
            }
            2 => drop(input.splice(token, self.word(random))),
            3 => insert(input, token.start, &self.word(random)),
            4 => {
                // A word of another input.
                let other = random.pick(self.corpus).map_or(&[][..], Vec::as_slice);
                let others = self::tokens(other);
                let part = random.pick(&others).cloned().unwrap_or(0..0);
                insert(input, token.end, &other[part]);
            }
            5 => {
                let other = random.pick(&tokens).cloned().unwrap_or(token.clone());
                swap(input, token, other);
            }
            _ => repeat(random, input),
        }
    }

    fn lines(&self, random: &mut Random, input: &mut Vec<u8>) {
        let mut lines: Vec<Vec<u8>> = input.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        let at = random.below(lines.len());
        match random.below(6) {
            0 => drop(lines.remove(at)),
            1 => {
                let copied = lines[at].clone();
                lines.insert(random.below(lines.len() + 1), copied);
            }
            2 => {
                let to = random.below(lines.len());
                lines.swap(at, to);
            }
            3 => insert(&mut lines[at], 0, &b"                "[..1 + random.below(8)]),
            4 => {
                let indent = lines[at].iter().take_while(|byte| **byte == b' ').count();
                lines[at].drain(..random.below(indent + 1));
            }
            _ => {
                let other = random.pick(self.corpus).map_or(&[][..], Vec::as_slice);
                let others: Vec<&[u8]> = other.split(|byte| *byte == b'\n').collect();
                lines.insert(at, random.pick(&others).map(|line| line.to_vec()).unwrap_or_default());
            }
        }
        *input = lines.join(&b'\n');
    }
}

/// Repeats a part: deep nesting, long words, many fields.
fn repeat(random: &mut Random, input: &mut Vec<u8>) {
    let part = range(random, input.len().min(64));
    let part = input[part].to_vec();
    if part.is_empty() {
        return;
    }
    let room = INPUT_LIMIT.saturating_sub(input.len()) / part.len();
    let most = if random.one_in(8) { room } else { room.min(300) };
    let at = random.below(input.len() + 1);
    insert(input, at, &part.repeat(random.below(most + 1)));
}

fn range(random: &mut Random, length: usize) -> Range<usize> {
    let start = random.below(length);
    // Short parts, mostly.
    let most = if random.one_in(4) { length - start } else { (length - start).min(16) };
    start..start + random.below(most + 1)
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

/// Splits text into words, and single characters of any other kind.
fn tokens(input: &[u8]) -> Vec<Range<usize>> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80;
    let mut tokens: Vec<Range<usize>> = Vec::new();
    for (at, byte) in input.iter().enumerate() {
        match tokens.last_mut() {
            Some(last) if is_word(*byte) && is_word(input[last.end - 1]) => last.end = at + 1,
            _ => tokens.push(at..at + 1),
        }
    }
    tokens
}

/// Swaps two parts that do not overlap.
fn swap(input: &mut Vec<u8>, one: Range<usize>, other: Range<usize>) {
    let (first, second) = if one.start < other.start { (one, other) } else { (other, one) };
    if first.end <= second.start {
        let (a, b) = (input[first.clone()].to_vec(), input[second.clone()].to_vec());
        input.splice(second, a);
        input.splice(first, b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(shape: Shape, corpus: &[&str]) -> Vec<Vec<u8>> {
        let corpus: Vec<Vec<u8>> = corpus.iter().map(|text| text.as_bytes().to_vec()).collect();
        let material = Material { corpus: &corpus, words: &[b"word".to_vec()], shape };
        (0..2000).map(|seed| material.input(seed)).collect()
    }

    #[test]
    fn inputs_are_varied_bounded_and_a_function_of_their_seed() {
        for shape in [Shape::Binary, Shape::Text, Shape::Lines, Shape::Json] {
            let corpus = ["", "a: 1\n  b: [x]", r#"{"a":[1,{"b":null}]}"#];
            let made = inputs(shape, &corpus);
            assert_eq!(made, inputs(shape, &corpus));
            assert!(made.iter().all(|input| input.len() <= INPUT_LIMIT));
            let mut distinct = made;
            distinct.sort();
            distinct.dedup();
            assert!(distinct.len() > 1000, "{shape:?}: {} of 2000", distinct.len());
        }
    }

    #[test]
    fn structure_survives_most_mutations() {
        let made = inputs(Shape::Json, &[r#"{"a":[1,{"b":null}],"c":"text"}"#]);
        let valid = made.iter().filter(|input| serde_json::from_slice::<serde_json::Value>(input).is_ok());
        assert!(valid.count() > 1000);
    }

    #[test]
    fn parts_are_swapped() {
        let mut input = b"one two".to_vec();
        swap(&mut input, 4..7, 0..3);
        assert_eq!(input, b"two one");
        swap(&mut input, 0..3, 1..2);
        assert_eq!(input, b"two one", "they overlap");
    }
}

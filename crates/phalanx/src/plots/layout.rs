//! Layered layout of a directed acyclic graph, after Sugiyama: depth by longest path, an order within
//! each layer with few crossings, then x coordinates that keep chains straight and center a split over
//! its branches. An edge that skips layers gets a waypoint in each, so that boxes do not block it.

/// Horizontal space between neighbors of a layer.
const GAP: f64 = 26.0;
/// Number of sweeps that sort the layers.
const SWEEPS: usize = 12;
/// Number of rounds that pull neighbors together and push overlaps apart.
const ROUNDS: usize = 500;
/// Weight of a skip edge and its waypoints, relative to 1 for boxes.
const SKIP_WEIGHT: f64 = 1e-3;

/// The coordinates of all nodes and edges.
pub struct Layout {
    /// Layer of each node.
    pub depth: Vec<usize>,
    /// Center of each node.
    pub x: Vec<f64>,
    /// For each edge, its x coordinates in the layers between its ends.
    pub routes: Vec<Vec<f64>>,
    /// For each edge, whether it skips nodes: the shorter of two paths to its end.
    pub skip: Vec<bool>,
    /// Width of the graph; all x coordinates are within it.
    pub width: f64,
}

/// Lays out nodes of the given widths. Every edge leads from a smaller to a larger index.
pub fn layered(widths: &[f64], edges: &[(usize, usize)]) -> Layout {
    let depth = depths(widths.len(), edges);
    let mut grid = Grid::new(widths, edges, &depth);
    grid.sort();
    let blocks = grid.blocks();
    let x = grid.coordinates(&blocks);
    let reach = |sign: f64| {
        let ends = x.iter().zip(&grid.widths).map(|(x, w)| sign * x + w / 2.0);
        ends.fold(0.0, f64::max)
    };
    let (left, right) = (reach(-1.0), reach(1.0));
    let x: Vec<f64> = x.iter().map(|x| x + left).collect();
    let routes = grid.waypoints.iter().map(|way| way.iter().map(|v| x[*v]).collect()).collect();
    let x = x[..widths.len()].to_vec();
    Layout { depth, x, routes, skip: grid.skip, width: left + right }
}

/// The longest path from a source. A source itself is directly above the node it feeds.
fn depths(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut depth = vec![0; nodes];
    let mut sorted = edges.to_vec();
    sorted.sort_unstable();
    for (from, to) in &sorted {
        depth[*to] = depth[*to].max(depth[*from] + 1);
    }
    for node in 0..nodes {
        let source = !edges.iter().any(|(_, to)| *to == node);
        let fed = edges.iter().filter(|(from, _)| *from == node).map(|(_, to)| depth[*to]).min();
        if let (true, Some(fed)) = (source, fed) {
            depth[node] = fed - 1;
        }
    }
    depth
}

/// Nodes and waypoints, with links only between adjacent layers.
struct Grid {
    widths: Vec<f64>,
    layers: Vec<Vec<usize>>,
    /// Position of each vertex in its layer.
    position: Vec<usize>,
    /// From, to, and whether the link belongs to a skip edge.
    links: Vec<(usize, usize, bool)>,
    /// Links into and out of each vertex.
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    waypoints: Vec<Vec<usize>>,
    skip: Vec<bool>,
}

impl Grid {
    fn new(widths: &[f64], edges: &[(usize, usize)], depth: &[usize]) -> Grid {
        let nodes = widths.len();
        let (mut outs, mut ins) = (vec![0; nodes], vec![0; nodes]);
        for (from, to) in edges {
            outs[*from] += 1;
            ins[*to] += 1;
        }
        let mut grid = Grid {
            widths: widths.to_vec(),
            layers: vec![vec![]; depth.iter().max().map_or(0, |d| d + 1)],
            position: vec![],
            links: vec![],
            above: vec![],
            below: vec![],
            waypoints: vec![],
            skip: vec![],
        };
        let mut layer = depth.to_vec();
        for (from, to) in edges {
            let between = depth[*from] + 1..depth[*to];
            let skip = !between.is_empty() && outs[*from] > 1 && ins[*to] > 1;
            let way: Vec<usize> = (layer.len()..).take(between.len()).collect();
            layer.extend(between);
            grid.widths.resize(layer.len(), 0.0);
            let ends = [&[*from], way.as_slice(), &[*to]].concat();
            grid.links.extend(ends.windows(2).map(|w| (w[0], w[1], skip)));
            grid.waypoints.push(way);
            grid.skip.push(skip);
        }
        grid.above = vec![vec![]; layer.len()];
        grid.below = vec![vec![]; layer.len()];
        for (i, (from, to, _)) in grid.links.iter().enumerate() {
            grid.below[*from].push(i);
            grid.above[*to].push(i);
        }
        // Depth first, so that a branch starts out contiguous.
        let mut seen = vec![false; layer.len()];
        for source in 0..nodes {
            let mut stack = vec![source];
            while let Some(vertex) = stack.pop() {
                if !std::mem::replace(&mut seen[vertex], true) {
                    grid.layers[layer[vertex]].push(vertex);
                    stack.extend(grid.below[vertex].iter().rev().map(|l| grid.links[*l].1));
                }
            }
        }
        grid.position = vec![0; layer.len()];
        grid.number();
        grid
    }

    fn number(&mut self) {
        for layer in &self.layers {
            layer.iter().enumerate().for_each(|(i, vertex)| self.position[*vertex] = i);
        }
    }

    /// Sorts each layer by the mean position of its neighbors above, then below, and keeps the order
    /// with the fewest crossings.
    fn sort(&mut self) {
        let mut best = (self.crossings(), self.layers.clone());
        for sweep in 0..SWEEPS {
            let down = sweep % 2 == 0;
            for step in 0..self.layers.len() {
                let i = if down { step } else { self.layers.len() - 1 - step };
                let mean = |vertex: &usize| {
                    let links = if down { &self.above[*vertex] } else { &self.below[*vertex] };
                    let ends = links.iter().map(|l| match down {
                        true => self.links[*l].0,
                        false => self.links[*l].1,
                    });
                    let sum: f64 = ends.map(|v| self.position[v] as f64).sum();
                    match links.len() {
                        0 => self.position[*vertex] as f64,
                        n => sum / n as f64,
                    }
                };
                let mut layer: Vec<(f64, usize)> =
                    self.layers[i].iter().map(|v| (mean(v), *v)).collect();
                layer.sort_by(|a, b| a.0.total_cmp(&b.0));
                for (position, (_, vertex)) in layer.iter().enumerate() {
                    self.position[*vertex] = position;
                    self.layers[i][position] = *vertex;
                }
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.layers.clone());
            }
        }
        self.layers = best.1;
        self.number();
    }

    fn crossings(&self) -> usize {
        let mut count = 0;
        for layer in &self.layers {
            // The ends in the order of the starts: each inversion is a crossing.
            let mut ends: Vec<(usize, usize)> = vec![];
            for vertex in layer {
                ends.extend(self.below[*vertex].iter().map(|l| {
                    let (from, to, _) = self.links[*l];
                    (self.position[from], self.position[to])
                }));
            }
            for (i, a) in ends.iter().enumerate() {
                count += ends[i + 1..].iter().filter(|b| b.0 > a.0 && b.1 < a.1).count();
            }
        }
        count
    }

    /// Groups vertices that share an x coordinate: chains without side branches, and the waypoints of an
    /// edge. Returns the block of every vertex. Of two chains that cross only one is kept straight, so
    /// that "left of" has no cycle among blocks.
    fn blocks(&self) -> Vec<usize> {
        let strong = |links: &[usize]| links.iter().filter(|l| !self.links[**l].2).count();
        let mut block: Vec<usize> = (0..self.widths.len()).collect();
        for layer in &self.layers {
            let mut free = 0;
            for vertex in layer {
                let straight = self.below[*vertex].iter().find(|l| {
                    let (from, to, skip) = self.links[**l];
                    let waypoints = self.waypoint(from) && self.waypoint(to);
                    let alone = strong(&self.below[from]) == 1 && strong(&self.above[to]) == 1;
                    (waypoints || alone && !skip) && self.position[to] >= free
                });
                if let Some(link) = straight {
                    let to = self.links[*link].1;
                    block[to] = block[*vertex];
                    free = self.position[to] + 1;
                }
            }
        }
        block
    }

    fn waypoint(&self, vertex: usize) -> bool {
        self.widths[vertex] == 0.0
    }

    /// The x coordinate of every vertex, in whole pixels. Blocks are pulled to the mean of their
    /// neighbors and pushed apart if they overlap. A block of waypoints gives way to one with boxes.
    fn coordinates(&self, block: &[usize]) -> Vec<f64> {
        let count = block.len();
        let mut heavy = vec![SKIP_WEIGHT; count];
        let (mut x, mut members) = (vec![0.0; count], vec![0.0; count]);
        let mut apart: Vec<(usize, usize, f64)> = vec![];
        for layer in &self.layers {
            let middle = |pair: &[usize]| (self.widths[pair[0]] + self.widths[pair[1]]) / 2.0 + GAP;
            let length: f64 = layer.windows(2).map(middle).sum();
            let mut at = -length / 2.0;
            for (i, vertex) in layer.iter().enumerate() {
                if i > 0 {
                    let distance = middle(&layer[i - 1..=i]);
                    at += distance;
                    apart.push((block[layer[i - 1]], block[*vertex], distance));
                }
                x[block[*vertex]] += at;
                members[block[*vertex]] += 1.0;
                if !self.waypoint(*vertex) {
                    heavy[block[*vertex]] = 1.0;
                }
            }
        }
        x.iter_mut().zip(&members).for_each(|(x, n)| *x /= f64::max(*n, 1.0));
        for _ in 0..ROUNDS {
            let mut pull = vec![(0.0, 0.0); count];
            for (from, to, skip) in &self.links {
                let (a, b) = (block[*from], block[*to]);
                let weight = if *skip { SKIP_WEIGHT } else { 1.0 };
                if a != b {
                    pull[a] = (pull[a].0 + weight * x[b], pull[a].1 + weight);
                    pull[b] = (pull[b].0 + weight * x[a], pull[b].1 + weight);
                }
            }
            for (x, (sum, weight)) in x.iter_mut().zip(pull) {
                if weight > 0.0 {
                    *x += 0.5 * (sum / weight - *x);
                }
            }
            for _ in 0..4 {
                for (a, b, distance) in &apart {
                    let overlap = distance - (x[*b] - x[*a]);
                    if overlap > 0.0 {
                        let share = heavy[*b] / (heavy[*a] + heavy[*b]);
                        x[*a] -= overlap * share;
                        x[*b] += overlap * (1.0 - share);
                    }
                }
            }
        }
        // Avoids halves, at which equal positions could round differently because of their last digits.
        x.iter_mut().for_each(|x| *x = (*x - 0.25).round());
        // Remaining overlaps are resolved by moving vertices to the right.
        for _ in 0..count {
            let mut moved = false;
            for (a, b, distance) in &apart {
                let least = x[*a] + distance.ceil();
                if x[*b] < least - 1.0 {
                    (x[*b], moved) = (least, true);
                }
            }
            if !moved {
                break;
            }
        }
        block.iter().map(|b| x[*b]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_straight() {
        let layout = layered(&[100.0; 4], &[(0, 1), (1, 2), (2, 3)]);
        assert_eq!(layout.depth, [0, 1, 2, 3]);
        assert_eq!(layout.x, [50.0; 4]);
        assert_eq!(layout.width, 100.0);
    }

    #[test]
    fn branches_stand_side_by_side_below_their_split() {
        let layout = layered(&[100.0; 4], &[(0, 1), (0, 2), (1, 3), (2, 3)]);
        assert!(layout.x[2] - layout.x[1] >= 100.0 + GAP - 1.0);
        assert!((layout.x[0] - (layout.x[1] + layout.x[2]) / 2.0).abs() <= 1.0);
        assert!((layout.x[0] - layout.x[3]).abs() <= 1.0);
    }

    #[test]
    fn a_skip_runs_beside_a_straight_trunk() {
        let layout = layered(&[100.0; 4], &[(0, 1), (0, 3), (1, 2), (2, 3)]);
        assert_eq!(layout.skip, [false, true, false, false]);
        assert!(layout.x.iter().all(|x| *x == layout.x[0]), "{:?}", layout.x);
        let way = &layout.routes[1];
        assert_eq!(way.len(), 2);
        assert!(way[0] == way[1] && (way[0] - layout.x[0]).abs() >= 50.0 + GAP - 1.0, "{way:?}");
    }

    #[test]
    fn no_boxes_overlap_in_a_tangle() {
        let nodes = 40;
        let edges: Vec<(usize, usize)> = (1..nodes)
            .flat_map(|to: usize| [(to * 7 % to, to), (to / 2, to), (to.saturating_sub(3), to)])
            .collect();
        let widths: Vec<f64> = (0..nodes).map(|i| 60.0 + 10.0 * (i % 5) as f64).collect();
        let layout = layered(&widths, &edges);
        for a in 0..nodes {
            assert!(layout.x[a] - widths[a] / 2.0 >= 0.0);
            assert!(layout.x[a] + widths[a] / 2.0 <= layout.width);
            for b in a + 1..nodes {
                let apart = (layout.x[a] - layout.x[b]).abs();
                let clear = apart >= (widths[a] + widths[b]) / 2.0;
                assert!(layout.depth[a] != layout.depth[b] || clear, "{a} and {b}");
            }
        }
    }
}

//! Strongly connected components of a graph, by Tarjan's algorithm.

/// Components of at least two nodes, the largest first; nodes ascend.
pub(super) fn circles(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search = Search {
        needs,
        order: vec![None; needs.len()],
        lowest: vec![0; needs.len()],
        on_stack: vec![false; needs.len()],
        stack: Vec::new(),
        next: 0,
        found: Vec::new(),
    };
    for node in 0..needs.len() {
        if search.order[node].is_none() {
            search.visit(node);
        }
    }
    let mut found = search.found;
    found.sort_by_key(|circle| (std::cmp::Reverse(circle.len()), circle[0]));
    found
}

struct Search<'a> {
    needs: &'a [Vec<usize>],
    order: Vec<Option<usize>>,
    lowest: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Recursion is as deep as the longest chain of modules.
    fn visit(&mut self, node: usize) {
        let own = self.next;
        self.next += 1;
        (self.order[node], self.lowest[node]) = (Some(own), own);
        self.stack.push(node);
        self.on_stack[node] = true;
        for &needed in &self.needs[node] {
            match self.order[needed] {
                None => {
                    self.visit(needed);
                    self.lowest[node] = self.lowest[node].min(self.lowest[needed]);
                }
                Some(order) if self.on_stack[needed] => self.lowest[node] = self.lowest[node].min(order),
                Some(_) => {}
            }
        }
        if self.lowest[node] != own {
            return;
        }
        let from = self.stack.iter().rposition(|&there| there == node).unwrap_or(0);
        let mut circle = self.stack.split_off(from);
        circle.iter().for_each(|&member| self.on_stack[member] = false);
        if circle.len() > 1 {
            circle.sort_unstable();
            self.found.push(circle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::circles;

    #[test]
    fn chains_have_no_circle_and_circles_that_meet_are_one() {
        assert!(circles(&[vec![1], vec![2], vec![]]).is_empty());
        assert_eq!(circles(&[vec![1], vec![0, 2], vec![3], vec![2, 4], vec![]]), [[0, 1], [2, 3]]);
        assert_eq!(circles(&[vec![1], vec![0, 2], vec![1]]), [[0, 1, 2]]);
    }
}

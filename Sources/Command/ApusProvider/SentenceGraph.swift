package import ApusCore
package import ApusSphinx

/// The smallest graph of sentences: common beginnings and common ends are shared. A list of 1,699 sentences has 93
/// states. Pure.
package struct SentenceGraph: Sendable {
    private struct Node: Hashable {
        var isEnd = false
        /// Ascending by word, one for each.
        var arcs: [Arc] = []
    }

    private struct Arc: Hashable {
        var word: Int32
        var node: Int
    }

    /// The most work for the graph of a grammar: states of its places, and transitions.
    private static let workMax = 5_000_000
    /// The longest sentence of a grammar, in words.
    private static let wordCountMax = 256

    private var nodes = [Node()]
    private var root = 0
    /// Nodes that will not change, by their content.
    private var known: [Node: Int] = [:]

    /// The graph of a list (Daciuk et al., "Incremental construction of minimal acyclic finite-state automata",
    /// Computational Linguistics 26, 2000).
    ///
    /// - Parameter sentences: indices of words; sorted, without duplicates and none empty.
    package init(_ sentences: [[Int32]]) {
        var previous: [Int32] = []
        for sentence in sentences {
            let common = zip(sentence, previous).prefix { $0 == $1 }.count
            var path = [0]
            for _ in 0..<common { path.append(nodes[path[path.count - 1]].arcs.last?.node ?? 0) }
            share(after: path[common])
            for word in sentence[common...] {
                nodes.append(Node())
                nodes[path[path.count - 1]].arcs.append(Arc(word: word, node: nodes.count - 1))
                path.append(nodes.count - 1)
            }
            nodes[path[path.count - 1]].isEnd = true
            previous = sentence
        }
        share(after: 0)
    }

    /// The graph of a grammar. The states of its places that follow the same words are one node, and nodes with the
    /// same rests of sentences are the same one.
    ///
    /// - Parameter numbers: of the words that can be heard.
    /// - Throws: 10022 if no sentence can be heard, or a rule is missing or recursive; 10002 if the graph is too large.
    package init(_ grammar: SpeechGrammar, numbers: [ExactText: Int32]) throws(ApusError) {
        let network = try SpeechNetwork(grammar, numbers: numbers)
        nodes = []
        var walk = Walk(network: network)
        guard let root = try visit(network.closed([0]), depth: 0, &walk), !nodes[root].arcs.isEmpty else {
            throw ApusError(.configurationInvalid, "no sentence of the grammar has words that can be said")
        }
        (self.root, known) = (root, [:])
    }

    private struct Walk {
        let network: SpeechNetwork
        /// The nodes of states, nil where no sentence ends behind them.
        var visited: [[Int]: Int?] = [:]
        var work = 0
    }

    /// The node of states; nil if no sentence ends behind them.
    private mutating func visit(_ states: [Int], depth: Int, _ walk: inout Walk) throws(ApusError) -> Int? {
        if let found = walk.visited[states] { return found }
        var targets: [Int32: Set<Int>] = [:]
        for state in states { for arc in walk.network.arcs[state] { targets[arc.word, default: []].insert(arc.to) } }
        walk.work += states.count + targets.count
        guard walk.work <= Self.workMax, depth <= Self.wordCountMax else {
            throw ApusError(.frameTooLarge, "the grammar is too large")
        }
        var node = Node(isEnd: states.contains(1))
        for (word, next) in targets.sorted(by: { $0.key < $1.key }) {
            if let next = try visit(walk.network.closed(next), depth: depth + 1, &walk) {
                node.arcs.append(Arc(word: word, node: next))
            }
        }
        guard node.isEnd || !node.arcs.isEmpty else {
            walk.visited[states] = .some(nil)
            return nil
        }
        let number = known[node] ?? nodes.count
        if number == nodes.count { nodes.append(node) }
        known[node] = number
        walk.visited[states] = number
        return number
    }

    /// What a text is; nil if no sentence begins with it.
    package func place(of words: [Int32]) -> (isSentence: Bool, isBeginning: Bool)? {
        var node = root
        for word in words {
            guard let arc = nodes[node].arcs.first(where: { $0.word == word }) else { return nil }
            node = arc.node
        }
        return (nodes[node].isEnd, !nodes[node].arcs.isEmpty)
    }

    /// Replaces the nodes of the last path below `node` with known ones that are the same, the deepest first.
    private mutating func share(after node: Int) {
        var path = [node]
        while let next = nodes[path[path.count - 1]].arcs.last?.node, known[nodes[next]] != next { path.append(next) }
        while path.count > 1 {
            let child = path.removeLast()
            let parent = path[path.count - 1]
            if let same = known[nodes[child]] {
                nodes[parent].arcs[nodes[parent].arcs.count - 1].node = same
            } else {
                known[nodes[child]] = child
            }
        }
    }

    /// The graph with one final state, and without states that nothing leaves.
    package func graph(words: [String]) -> SphinxGraph {
        var numbers: [Int: Int32] = [root: 0]
        var open = [root]
        var arcs: [(from: Int32, to: Int, word: Int32)] = []
        while let node = open.popLast() {
            let from = numbers[node] ?? 0
            for arc in nodes[node].arcs {
                if nodes[arc.node].isEnd { arcs.append((from, -1, arc.word)) }
                guard !nodes[arc.node].arcs.isEmpty else { continue }
                if numbers[arc.node] == nil {
                    numbers[arc.node] = Int32(numbers.count)
                    open.append(arc.node)
                }
                arcs.append((from, arc.node, arc.word))
            }
        }
        let final = Int32(numbers.count)
        return SphinxGraph(
            stateCount: final + 1, final: final, words: words,
            arcs: arcs.map { .init(from: $0.from, to: numbers[$0.to] ?? final, word: $0.word) })
    }
}

import ApusCore
import ApusProvider
import ApusSphinx
import Testing

@Suite("Graphs of sentences (VA)")
struct SentenceGraphTests {
    /// All sentences of a graph.
    private func sentences(_ graph: SphinxGraph) -> Set<[Int32]> {
        var found: Set<[Int32]> = []
        var open: [(state: Int32, words: [Int32])] = [(0, [])]
        while let (state, words) = open.popLast() {
            if state == graph.final { found.insert(words) }
            for arc in graph.arcs where arc.from == state { open.append((arc.to, words + [arc.word])) }
        }
        return found
    }

    private func graph(_ sentences: [[Int32]]) -> SphinxGraph {
        let sorted = sentences.sorted { $0.lexicographicallyPrecedes($1) }
        return SentenceGraph(sorted).graph(words: [])
    }

    @Test("A graph has exactly the sentences that it was made of", arguments: 0..<200 as Range<UInt64>)
    func exact(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var wanted: Set<[Int32]> = []
        for _ in 0..<Int.random(in: 1...60, using: &random) {
            wanted.insert(
                (0..<Int.random(in: 1...5, using: &random)).map { _ in Int32.random(in: 0..<4, using: &random) })
        }
        let graph = graph(Array(wanted))
        #expect(sentences(graph) == wanted, "seed \(seed)")
        #expect(graph.arcs.allSatisfy { (0..<graph.stateCount).contains($0.from) && (1...graph.final).contains($0.to) })
        #expect(Set(graph.arcs).count == graph.arcs.count)
    }

    @Test("Common beginnings and ends are shared: 8,000 sentences of three words have four states")
    func shared() {
        var all: [[Int32]] = []
        for first in 0..<20 as Range<Int32> {
            for second in 20..<40 as Range<Int32> {
                for third in 40..<60 as Range<Int32> { all.append([first, second, third]) }
            }
        }
        let graph = graph(all)
        #expect(graph.stateCount == 4)
        #expect(graph.arcs.count == 60)
    }

    @Test("A sentence that begins another one ends, and goes on")
    func beginning() {
        let graph = graph([[1], [1, 2]])
        #expect(sentences(graph) == [[1], [1, 2]])
    }
}

/// The walk of the nodes over a text. Every result is computed once per node and position.
struct GrammarWalk {
    let tables: GrammarTables
    let text: GrammarText
    private var ends: [UInt32: UInt64] = [:]
    private var listEnds: [UInt32: UInt64] = [:]
    private var opens: [UInt32: Bool] = [:]
    private var continuations: [Int: [NumberSpan]] = [:]
    private var stepCount = 0
    /// True if the walk took more than ``GrammarLimits/stepCountMax`` steps. Its results are then incomplete.
    private(set) var isStopped = false
    private let stepCountMax: Int

    /// - Parameter stepCountMax: the bound, at most ``GrammarLimits/stepCountMax``. For tests.
    init(_ tables: GrammarTables, _ text: GrammarText, stepCountMax: Int = GrammarLimits.stepCountMax) {
        (self.tables, self.text, self.stepCountMax) = (tables, text, stepCountMax)
    }

    /// Counts a step. False if there are too many.
    mutating func step() -> Bool {
        stepCount += 1
        if stepCount > stepCountMax { isStopped = true }
        return !isStopped
    }

    private static func key(_ node: Int32, _ position: Int) -> UInt32 { UInt32(node) << 6 | UInt32(position) }

    /// The positions behind the node, if it begins at a position.
    mutating func ends(of node: Int32, from position: Int) -> UInt64 {
        let index = Int(node)
        let isNullable = tables.templates.isNullable[index]
        guard tables.isAlive[index], step() else { return 0 }
        let mayBegin = position < text.count && tables.firsts[index] & text.firsts[position] != 0
        guard mayBegin || isNullable else { return 0 }
        switch tables.templates.nodes[index] {
        case .word(let word): return text.has(word, at: position) ? text.skips[position + 1] : 0
        case .number(let tenths): return text.skipping(text.ends(ofNumber: tenths, from: position))
        case .list(let use, _): return text.skipping(ends(ofList: use, from: position))
        case .sequence(let children):
            guard mayBegin else { return 1 << UInt64(position) }
            if let known = ends[Self.key(node, position)] { return known }
            var positions = UInt64(1) << UInt64(position)
            for child in children {
                positions = ends(of: child, from: positions)
                if positions == 0 { break }
            }
            ends[Self.key(node, position)] = positions
            return positions
        case .choice(let children):
            guard mayBegin else { return 1 << UInt64(position) }
            if let known = ends[Self.key(node, position)] { return known }
            var positions = UInt64(0)
            for child in children { positions |= ends(of: child, from: position) }
            ends[Self.key(node, position)] = positions
            return positions
        }
    }

    /// The positions behind the node, if it begins at any of several.
    mutating func ends(of node: Int32, from positions: UInt64) -> UInt64 {
        var (rest, reached) = (positions, UInt64(0))
        while rest != 0 {
            reached |= ends(of: node, from: rest.trailingZeroBitCount)
            rest &= rest - 1
        }
        return reached
    }

    /// The positions behind a value of a list, without skip words behind it.
    mutating func ends(ofList use: Int32, from position: Int) -> UInt64 {
        if let known = listEnds[Self.key(use, position)] { return known }
        var positions = UInt64(0)
        for candidate in candidates(ofList: use, from: position) { positions |= candidate.ends }
        listEnds[Self.key(use, position)] = positions
        return positions
    }

    /// What a list has at a position.
    struct Candidate {
        enum Value {
            /// The number of a value.
            case value(Int32)
            /// A number, in tenths.
            case number(Int)
            case words
        }

        var value: Value
        /// The positions behind it.
        var ends: UInt64
    }

    mutating func candidates(ofList use: Int32, from position: Int) -> [Candidate] {
        guard position < text.count else { return [] }
        let list = tables.lists[Int(use)]
        var candidates: [Candidate] = []
        switch list.kind {
        case .wildcard:
            let behind = UInt64.max << UInt64(position + 1)
            let last = UInt64.max >> UInt64(63 - text.count)
            return [Candidate(value: .words, ends: behind & last)]
        case .range(let range):
            for span in text.spans[position] where range.contains(span) {
                candidates.append(Candidate(value: .number(span.tenths), ends: 1 << UInt64(span.end)))
            }
        case .values:
            for bucket in text.leaves(at: position) {
                for entry in list.entries[bucket] ?? [] {
                    guard step() else { return [] }
                    let ends = text.ends(of: entry.leaves, from: position)
                    if ends != 0 { candidates.append(Candidate(value: .value(entry.value), ends: ends)) }
                }
            }
            for form in list.forms {
                let ends = ends(of: form.node, from: position)
                if ends != 0 { candidates.append(Candidate(value: .value(form.value), ends: ends)) }
            }
        }
        return candidates
    }

    // MARK: Beginnings

    /// True if the rest of the text from a position is the beginning of the node, which has at least one more word.
    mutating func isOpen(_ node: Int32, from position: Int) -> Bool {
        let index = Int(node)
        guard tables.hasWords[index], step() else { return false }
        if position == text.count { return true }
        let mayBegin = tables.firsts[index] & text.firsts[position] != 0
        guard mayBegin || tables.templates.isNullable[index] || mayContinueNumber(index, position) else {
            return false
        }
        if let known = opens[Self.key(node, position)] { return known }
        let result: Bool
        switch tables.templates.nodes[index] {
        case .word: result = false
        case .number(let tenths):
            result = numbers(continuedFrom: position).contains { $0.tenths == tenths && !$0.isPercent }
        case .list(let use, _): result = isOpen(list: use, from: position)
        case .sequence(let children):
            var (positions, isFound) = (UInt64(1) << UInt64(position), false)
            for child in children {
                var rest = positions
                while rest != 0, !isFound {
                    isFound = isOpen(child, from: rest.trailingZeroBitCount)
                    rest &= rest - 1
                }
                guard !isFound else { break }
                positions = ends(of: child, from: positions)
                if positions == 0 { break }
            }
            result = isFound
        case .choice(let children):
            var isFound = false
            for child in children where !isFound { isFound = isOpen(child, from: position) }
            result = isFound
        }
        opens[Self.key(node, position)] = result
        return result
    }

    /// True if the node may begin with a number whose first words are no number yet, such as 百分之.
    private func mayContinueNumber(_ index: Int, _ position: Int) -> Bool {
        tables.firsts[index] & FirstWords.number != 0 && text.count - position <= 8
    }

    private mutating func isOpen(list use: Int32, from position: Int) -> Bool {
        let list = tables.lists[Int(use)]
        switch list.kind {
        case .wildcard: return true
        case .range(let range): return numbers(continuedFrom: position).contains { range.contains($0) }
        case .values:
            for form in list.forms where isOpen(form.node, from: position) { return true }
            for bucket in text.leaves(at: position) {
                for entry in list.entries[bucket] ?? [] {
                    guard step() else { return false }
                    let isBeginning = (1..<entry.leaves.count).contains { count in
                        text.ends(of: Array(entry.leaves[..<count]), from: position).has(text.count)
                    }
                    if isBeginning { return true }
                }
            }
            return false
        }
    }

    /// The numbers of which the rest of the text is the beginning.
    private mutating func numbers(continuedFrom position: Int) -> [NumberSpan] {
        if let known = continuations[position] { return known }
        let spans = tables.templates.language.continuations(of: text.words, from: position)
        continuations[position] = spans
        return spans
    }
}

import ApusCore

/// The nodes of a grammar while it is compiled. Equal nodes are stored once.
struct GrammarNodeTable {
    private(set) var nodes: [GrammarNode] = []
    private(set) var isNullable: [Bool] = []
    /// The forms of each node, with saturation. A list counts as one.
    private(set) var formCounts: [UInt64] = []
    private var depths: [Int] = []
    private var indices: [GrammarNode: Int32] = [:]

    /// - Throws: 10002 over ``GrammarLimits/nodeCountMax`` or ``GrammarLimits/nodeDepthMax``.
    mutating func add(_ node: GrammarNode, _ place: GrammarPlace) throws(ApusError) -> Int32 {
        if let index = indices[node] { return index }
        guard nodes.count < GrammarLimits.nodeCountMax else {
            throw ApusError(grammarTooLarge: place, "more than \(GrammarLimits.nodeCountMax) nodes")
        }
        var (isEmpty, count, depth) = (false, UInt64(1), 1)
        switch node {
        case .word, .number, .list: break
        case .sequence(let children):
            isEmpty = children.allSatisfy { isNullable[Int($0)] }
            for child in children { count = Self.product(count, formCounts[Int(child)]) }
            depth += children.map { depths[Int($0)] }.max() ?? 0
        case .choice(let children):
            isEmpty = children.contains { isNullable[Int($0)] }
            count = children.reduce(0) { Self.sum($0, formCounts[Int($1)]) }
            depth += children.map { depths[Int($0)] }.max() ?? 0
        }
        guard depth <= GrammarLimits.nodeDepthMax else {
            throw ApusError(
                grammarTooLarge: place, "rules and groups are nested deeper than \(GrammarLimits.nodeDepthMax)")
        }
        let index = Int32(nodes.count)
        nodes.append(node)
        isNullable.append(isEmpty)
        formCounts.append(count)
        depths.append(depth)
        indices[node] = index
        return index
    }

    /// The node of parts that follow one another.
    mutating func sequence(_ children: [Int32], _ place: GrammarPlace) throws(ApusError) -> Int32 {
        var flat: [Int32] = []
        for child in children {
            if case .sequence(let inner) = nodes[Int(child)] { flat += inner } else { flat.append(child) }
        }
        return flat.count == 1 ? flat[0] : try add(.sequence(flat), place)
    }

    /// The node of alternatives.
    mutating func choice(_ children: [Int32], _ place: GrammarPlace) throws(ApusError) -> Int32 {
        var flat: [Int32] = []
        var seen: Set<Int32> = []
        for child in children {
            var inner = [child]
            if case .choice(let alternatives) = nodes[Int(child)] { inner = alternatives }
            for alternative in inner where seen.insert(alternative).inserted { flat.append(alternative) }
        }
        return flat.count == 1 ? flat[0] : try add(.choice(flat), place)
    }

    mutating func text(_ leaves: [GrammarLeaf], _ place: GrammarPlace) throws(ApusError) -> Int32 {
        var children: [Int32] = []
        for leaf in leaves {
            switch leaf {
            case .word(let word): children.append(try add(.word(word), place))
            case .number(let tenths): children.append(try add(.number(tenths), place))
            }
        }
        return try sequence(children, place)
    }

    static func product(_ left: UInt64, _ right: UInt64) -> UInt64 {
        let (product, isOver) = left.multipliedReportingOverflow(by: right)
        return isOver ? .max : product
    }

    static func sum(_ left: UInt64, _ right: UInt64) -> UInt64 {
        let (sum, isOver) = left.addingReportingOverflow(right)
        return isOver ? .max : sum
    }
}

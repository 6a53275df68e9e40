package import ApusCore

/// The faults of an isolated cluster's network that are wanted, by the names of nodes and clients.
/// The verbs change this value, and the network is then made to fit it.
package struct NetworkFaults: Codable, Sendable, Equatable {
    /// Packets from one endpoint to another are dropped.
    package struct Cut: Codable, Sendable, Hashable, Comparable {
        /// The sender.
        package var from: String
        /// The receiver.
        package var to: String

        package static func < (left: Self, right: Self) -> Bool { (left.from, left.to) < (right.from, right.to) }
    }

    /// What a repair selects.
    package enum Target: Sendable, Equatable {
        /// All faults of one endpoint.
        case endpoint(String)
        /// The cuts between two endpoints, of both directions.
        case pair(String, String)
    }

    /// The maximum delay, in milliseconds.
    package static let delayMax = 5000

    /// Sorted, and without duplicates.
    package private(set) var cuts: [Cut] = []
    /// The share of lost packets of an endpoint, in percent, 1 to 100. It applies to packets of both directions.
    package private(set) var losses: [String: Int] = [:]
    /// The delay of the packets that an endpoint sends, in milliseconds.
    package private(set) var delays: [String: Int] = [:]
    /// The endpoints that do not reach the ownership store. Sorted, and without duplicates.
    package private(set) var storeCuts: [String] = []

    private enum CodingKeys: String, CodingKey {
        case cuts
        case losses = "loss_percent"
        case delays = "delay_ms"
        case storeCuts = "store_cuts"
    }

    /// A network without faults.
    package init() {}

    /// True if there is no fault.
    package var isEmpty: Bool { self == NetworkFaults() }

    /// Cuts every endpoint of the first side from every one of the second.
    /// - Parameter isOneWay: only packets from the first side to the second are dropped.
    /// - Throws: 21031 if an endpoint is on both sides, or a side is empty.
    package mutating func cut(_ first: [String], _ second: [String], isOneWay: Bool) throws(ApusError) {
        guard !first.isEmpty, !second.isEmpty else { throw ApusError(.badParameter, "a side has no nodes") }
        if let both = first.first(where: { second.contains($0) }) {
            throw ApusError(.badParameter, "\(both) is on both sides")
        }
        var all = Set(cuts)
        for (from, to) in first.flatMap({ from in second.map { (from, $0) } }) {
            all.insert(Cut(from: from, to: to))
            if !isOneWay { all.insert(Cut(from: to, to: from)) }
        }
        cuts = all.sorted()
    }

    /// Sets the share of lost packets of an endpoint; 0 ends the loss.
    /// - Throws: 21031 if it is not 0 to 100.
    package mutating func setLoss(_ percent: Int, of endpoint: String) throws(ApusError) {
        guard (0...100).contains(percent) else {
            throw ApusError(.badParameter, "the loss must be 0 to 100 percent, not \(percent)")
        }
        losses[endpoint] = percent == 0 ? nil : percent
    }

    /// Sets the delay of the packets that an endpoint sends; 0 ends the delay.
    /// - Throws: 21031 if it is not 0 to ``delayMax``.
    package mutating func setDelay(_ milliseconds: Int, of endpoint: String) throws(ApusError) {
        guard (0...Self.delayMax).contains(milliseconds) else {
            throw ApusError(.badParameter, "the delay must be 0 to \(Self.delayMax) ms, not \(milliseconds)")
        }
        delays[endpoint] = milliseconds == 0 ? nil : milliseconds
    }

    /// Cuts an endpoint from the ownership store.
    package mutating func cutStore(of endpoint: String) {
        if !storeCuts.contains(endpoint) { storeCuts = (storeCuts + [endpoint]).sorted() }
    }

    /// Ends all faults.
    package mutating func heal() { self = NetworkFaults() }

    /// Ends the faults of a target.
    package mutating func heal(_ target: Target) {
        switch target {
        case .pair(let one, let other):
            cuts.removeAll { ($0.from == one && $0.to == other) || ($0.from == other && $0.to == one) }
        case .endpoint(let name):
            cuts.removeAll { $0.from == name || $0.to == name }
            losses[name] = nil
            delays[name] = nil
            storeCuts.removeAll { $0 == name }
        }
    }

    /// The rows of a table of the faults, with its head; empty if there is none.
    package var rows: [[String]] {
        guard !isEmpty else { return [] }
        var rows = [["FAULT", "WHERE", "VALUE"]]
        for cut in cuts {
            let isBothWays = cuts.contains(Cut(from: cut.to, to: cut.from))
            if isBothWays, cut.to < cut.from { continue }
            let place = "\(cut.from) \(isBothWays ? "-" : "->") \(cut.to)"
            rows.append(["cut", place, isBothWays ? "both ways" : "one way"])
        }
        rows += losses.sorted { $0.key < $1.key }.map { ["loss", $0.key, "\($0.value) %"] }
        rows += delays.sorted { $0.key < $1.key }.map { ["delay", $0.key, "\($0.value) ms"] }
        rows += storeCuts.map { ["cut-store", $0, "both ways"] }
        return rows
    }
}

/// Reads the names of endpoints in arguments: a number from 1 or the name of a node, or the name of a client.
package struct EndpointNames: Sendable {
    /// In the order of their numbers, from 1.
    package var nodes: [String]
    /// The namespaces for clients.
    package var clients: [String]

    /// The servers of the ownership store.
    package var stores: [String]

    /// The endpoints of a network.
    package init(nodes: [String], clients: [String], stores: [String] = []) {
        self.nodes = nodes
        self.clients = clients
        self.stores = stores
    }

    /// One endpoint, such as `1`, `n1` or the name of a client.
    /// - Throws: 21031 with the existing names.
    package func endpoint(_ text: String) throws(ApusError) -> String {
        if let found = find(text) { return found }
        let names = (nodes + stores + clients).joined(separator: ", ")
        throw ApusError(
            .badParameter, "there is no node or client '\(text)'; the nodes are 1 to \(nodes.count), by name \(names)")
    }

    /// Several endpoints, such as `1,3`.
    /// - Throws: 21031 if one does not exist.
    package func list(_ text: String) throws(ApusError) -> [String] {
        var found: [String] = []
        for part in text.split(separator: ",", omittingEmptySubsequences: false) {
            let name = try endpoint(String(part))
            if !found.contains(name) { found.append(name) }
        }
        return found
    }

    /// Two endpoints, such as `1-2`. A name may contain a hyphen too.
    /// - Throws: 21031 if the text is no pair of different endpoints.
    package func pair(_ text: String) throws(ApusError) -> (String, String) {
        if let (one, other) = findPair(text), one != other { return (one, other) }
        throw ApusError(.badParameter, "'\(text)' is not a pair of different nodes, such as 1-2")
    }

    /// One endpoint or a pair.
    /// - Throws: 21031 if the text is neither.
    package func target(_ text: String) throws(ApusError) -> NetworkFaults.Target {
        if let found = find(text) { return .endpoint(found) }
        if findPair(text) == nil { return .endpoint(try endpoint(text)) }
        let (one, other) = try pair(text)
        return .pair(one, other)
    }

    private func find(_ text: String) -> String? {
        if let number = Int(text), nodes.indices.contains(number - 1) { return nodes[number - 1] }
        return (nodes + stores + clients).contains(text) ? text : nil
    }

    private func findPair(_ text: String) -> (String, String)? {
        for index in text.indices where text[index] == "-" {
            let (left, right) = (String(text[..<index]), String(text[text.index(after: index)...]))
            if let one = find(left), let other = find(right) { return (one, other) }
        }
        return nil
    }
}

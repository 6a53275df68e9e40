import ApusCore
import ApusLocal
import Testing

@Suite("The wanted faults of an isolated cluster's network")
struct NetworkFaultsTests {
    private let names = EndpointNames(nodes: ["n1", "n2", "n3"], clients: ["phone-1", "cam"])

    private static func lines(_ faults: NetworkFaults) -> [String] { faults.cuts.map { "\($0.from)>\($0.to)" } }

    @Test("A partition cuts both directions between each pair of its sides, and a second one adds nothing")
    func partition() throws {
        var faults = NetworkFaults()
        try faults.cut(names.list("1"), names.list("2,3"), isOneWay: false)
        #expect(Self.lines(faults) == ["n1>n2", "n1>n3", "n2>n1", "n3>n1"])
        let before = faults
        try faults.cut(["n2"], ["n1"], isOneWay: false)
        #expect(faults == before)
    }

    @Test("A one-way cut has one direction")
    func oneWay() throws {
        var faults = NetworkFaults()
        try faults.cut(["n2"], ["n1"], isOneWay: true)
        #expect(Self.lines(faults) == ["n2>n1"])
        #expect(faults.rows.last == ["cut", "n2 -> n1", "one way"])
    }

    @Test("An endpoint on both sides and an empty side are refused with 21031, and nothing is cut")
    func sides() {
        var faults = NetworkFaults()
        #expect(throws: ApusError(.badParameter)) { try faults.cut(["n1", "n2"], ["n2"], isOneWay: false) }
        #expect(throws: ApusError(.badParameter)) { try faults.cut(["n1"], [], isOneWay: false) }
        #expect(faults.isEmpty)
    }

    @Test("Loss and delay outside their ranges are refused with 21031, and 0 ends them")
    func ranges() throws {
        var faults = NetworkFaults()
        for percent in [-1, 101] {
            #expect(throws: ApusError(.badParameter)) { try faults.setLoss(percent, of: "n1") }
        }
        for milliseconds in [-1, NetworkFaults.delayMax + 1] {
            #expect(throws: ApusError(.badParameter)) { try faults.setDelay(milliseconds, of: "n1") }
        }
        #expect(faults.isEmpty)
        try faults.setLoss(30, of: "n1")
        try faults.setDelay(NetworkFaults.delayMax, of: "n2")
        #expect(faults.losses == ["n1": 30] && faults.delays == ["n2": NetworkFaults.delayMax])
        try faults.setLoss(0, of: "n1")
        try faults.setDelay(0, of: "n2")
        #expect(faults.isEmpty)
    }

    @Test("A repair ends the faults of its target and no others")
    func heal() throws {
        var faults = NetworkFaults()
        try faults.cut(["n1"], ["n2", "n3"], isOneWay: false)
        try faults.setLoss(5, of: "n1")
        try faults.setDelay(50, of: "n3")
        faults.cutStore(of: "n3")
        faults.heal(.pair("n2", "n1"))
        #expect(Self.lines(faults) == ["n1>n3", "n3>n1"] && faults.losses == ["n1": 5])
        faults.heal(.endpoint("n3"))
        #expect(faults.cuts.isEmpty && faults.delays.isEmpty && faults.storeCuts.isEmpty && faults.losses == ["n1": 5])
        faults.heal()
        #expect(faults.isEmpty && faults.rows.isEmpty)
    }

    @Test("The table shows a cut of both directions once, and each other fault in a row")
    func rows() throws {
        var faults = NetworkFaults()
        try faults.cut(["n2"], ["n1"], isOneWay: false)
        try faults.setLoss(5, of: "cam")
        try faults.setDelay(50, of: "n3")
        faults.cutStore(of: "n1")
        faults.cutStore(of: "n1")
        #expect(
            faults.rows == [
                ["FAULT", "WHERE", "VALUE"], ["cut", "n1 - n2", "both ways"], ["loss", "cam", "5 %"],
                ["delay", "n3", "50 ms"], ["cut-store", "n1", "both ways"],
            ])
    }

    @Test("A node is selected by number or name, a client by name, and a list has no duplicates")
    func endpoints() throws {
        #expect(try names.endpoint("2") == "n2" && names.endpoint("n3") == "n3" && names.endpoint("cam") == "cam")
        #expect(try names.list("3,cam,n3") == ["n3", "cam"])
        for text in ["0", "4", "n4", "", "1,"] {
            #expect(throws: ApusError(.badParameter), "\(text)") { try names.list(text) }
        }
    }

    @Test("A pair is two different endpoints, whose names may contain hyphens")
    func pairs() throws {
        for (text, one, other) in [
            ("1-2", "n1", "n2"), ("n3-1", "n3", "n1"), ("phone-1-2", "phone-1", "n2"),
            ("cam-phone-1", "cam", "phone-1"),
        ] {
            let pair = try names.pair(text)
            #expect(pair.0 == one && pair.1 == other, "\(text)")
        }
        for text in ["1", "1-1", "1-9", "-", "1-", "1,2"] {
            #expect(throws: ApusError(.badParameter), "\(text)") { _ = try names.pair(text) }
        }
    }

    @Test("The target of a repair is an endpoint, also with a hyphen in its name, or a pair")
    func targets() throws {
        #expect(try names.target("2") == .endpoint("n2"))
        #expect(try names.target("phone-1") == .endpoint("phone-1"))
        #expect(try names.target("1-3") == .pair("n1", "n3"))
        for text in ["9", "2-2", "1-9"] {
            #expect(throws: ApusError(.badParameter), "\(text)") { try names.target(text) }
        }
    }
}

import ApusCore
import ApusRelay
import ApusTraversal
import Testing

@Suite("Clients that have not authenticated: which of them makes room (D13)")
struct AdmissionTests {
    private func address(_ host: UInt32, port: UInt16 = 1) -> TransportAddress {
        TransportAddress(v4: host, port: port)
    }

    @Test("A source at its bound displaces its own oldest; another source enters beside it")
    func perSource() {
        var machine = AdmissionStateMachine(perSourceMax: 2)
        machine.enter(5, from: address(9, port: 1), at: 1)
        machine.enter(3, from: address(9, port: 2), at: 2)
        #expect(machine.displaced(by: address(9, port: 3), isFull: false) == 5)
        #expect(machine.displaced(by: address(8), isFull: false) == nil)
        machine.leave(5)
        machine.enter(7, from: address(9, port: 3), at: 3)
        #expect(machine.displaced(by: address(9), isFull: false) == 3)
        machine.leave(3)
        machine.leave(3)
        #expect(machine.displaced(by: address(9), isFull: false) == nil && machine.count(of: address(9)) == 1)
    }

    @Test("A table that is full displaces the oldest of all, and nobody where nobody is here")
    func full() {
        var machine = AdmissionStateMachine(perSourceMax: 8)
        #expect(machine.displaced(by: address(1), isFull: true) == nil)
        machine.enter(4, from: address(2), at: 1)
        machine.enter(1, from: address(1), at: 2)
        #expect(machine.displaced(by: address(1), isFull: true) == 4)
    }

    @Test("The oldest is late when its time is over, and not before; one that came back has its time anew")
    func late() {
        var machine = AdmissionStateMachine(perSourceMax: 8)
        machine.enter(0, from: address(1), at: 100)
        machine.enter(1, from: address(1), at: 150)
        #expect(machine.late(at: 199, limit: 100) == nil)
        #expect(machine.late(at: 201, limit: 100) == 0)
        machine.leave(0)
        machine.enter(0, from: address(1), at: 201)
        #expect(machine.late(at: 251, limit: 100) == 1)
    }

    @Test("Sources of IPv6 are /64 networks")
    func networks() {
        var machine = AdmissionStateMachine(perSourceMax: 1)
        machine.enter(0, from: TransportAddress(v6High: 7, low: 1, port: 1), at: 1)
        #expect(machine.displaced(by: TransportAddress(v6High: 7, low: 2, port: 9), isFull: false) == 0)
        #expect(machine.displaced(by: TransportAddress(v6High: 8, low: 1, port: 1), isFull: false) == nil)
    }

    @Test("It is what a list would be", arguments: 0..<20 as Range<UInt64>)
    func random(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = AdmissionStateMachine(perSourceMax: 3)
        var list: [(place: Int, host: UInt32)] = []
        for now in 0..<2_000 as Range<UInt64> {
            let place = Int.random(in: 0..<24, using: &random)
            let host = UInt32.random(in: 1...4, using: &random)
            let own = list.filter { $0.host == host }
            let isFull = Bool.random(using: &random)
            let expected = own.count >= 3 ? own[0].place : isFull ? list.first?.place : nil
            #expect(machine.displaced(by: address(host), isFull: isFull) == expected)
            if list.contains(where: { $0.place == place }) {
                machine.leave(place)
                list.removeAll { $0.place == place }
            } else {
                machine.enter(place, from: address(host), at: now)
                list.append((place, host))
            }
            #expect(machine.count == list.count && machine.oldest == list.first?.place)
            #expect(machine.count(of: address(host)) == list.count { $0.host == host })
        }
    }
}

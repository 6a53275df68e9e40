import ApusCore
import ApusTraversal
import Testing

@Suite("Refresh of one of two families (RFC 8656 §8)")
struct TurnFamilyTests {
    private let peer6 = TransportAddress(v6High: 0x2a00_1450_0000_0000, low: 1, port: 9)

    /// A driver with an allocation of both families that has a channel in each.
    private func dual() throws -> (driver: TurnDriver, id: AllocationID) {
        var driver = TurnDriver()
        let id = try driver.allocate { $0.add(.additionalAddressFamily, family: .v6) }
        try driver.bind(0x4001, peer)
        try driver.bind(0x4002, peer6)
        return (driver, id)
    }

    private func refresh(
        _ driver: inout TurnDriver, _ family: TransportAddress.Family?, lifetime: UInt32
    ) throws -> [TurnAction] {
        try driver.ask(.refresh) { writer in
            writer.add(.lifetime, number: lifetime)
            if let family { writer.add(.requestedAddressFamily, family: family) }
        }
    }

    @Test("Lifetime 0 for one family ends that one, with its channels and permissions; the other goes on")
    func deleted() throws {
        for family in [TransportAddress.Family.v4, .v6] {
            let (made, id) = try dual()
            var driver = made
            let actions = try refresh(&driver, family, lifetime: 0)
            #expect(try driver.code(actions) == 0)
            let (gone, number) = family == .v4 ? (peer, UInt16(0x4001)) : (peer6, UInt16(0x4002))
            let (other, otherNumber) = family == .v4 ? (peer6, UInt16(0x4002)) : (peer, UInt16(0x4001))
            #expect(
                actions.prefix(3) == [.unbindChannel(id, number), .revoke(id, gone.host), .closeFamily(id, family)])
            #expect(driver.machine.allocationCount == 1)
            // The other is refreshed, and this one is no part of the allocation any more.
            #expect(try driver.code(refresh(&driver, family, lifetime: 600)) == 443)
            #expect(try driver.code(driver.bind(otherNumber, other)) == 0)
            #expect(try driver.code(driver.bind(number, gone)) == 443)
            #expect(try driver.code(refresh(&driver, family == .v4 ? .v6 : .v4, lifetime: 0)) == 0)
            #expect(driver.machine.allocationCount == 0)
        }
    }

    @Test("Lifetime 0 without a family ends both")
    func deletedWhole() throws {
        let (made, id) = try dual()
        var driver = made
        let actions = try refresh(&driver, nil, lifetime: 0)
        #expect(actions.contains(.remove(id)) && driver.machine.allocationCount == 0)
    }

    @Test("A family that is not refreshed ends by itself, and the other with its own time")
    func expired() throws {
        let (made, id) = try dual()
        var driver = made
        _ = driver.advance(.seconds(400))
        #expect(try driver.code(refresh(&driver, .v4, lifetime: 600)) == 0)
        let first = driver.advance(.seconds(250))
        #expect(first.contains(.closeFamily(id, .v6)) && driver.machine.allocationCount == 1)
        let second = driver.advance(.seconds(360))
        #expect(second.contains(.remove(id)) && driver.machine.allocationCount == 0)
    }
}

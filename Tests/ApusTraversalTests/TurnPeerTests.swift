import ApusCore
import ApusTraversal
import Testing

@Suite("Permissions, channels and data (RFC 8656 §9 to §12)")
struct TurnPeerTests {
    private func permit(_ driver: inout TurnDriver, _ peers: TransportAddress...) throws -> [TurnAction] {
        try driver.ask(.createPermission) { writer in
            for peer in peers { writer.add(.xorPeerAddress, xorAddress: peer) }
        }
    }

    @Test("A permission lets its host pass for 300 s, and as long as it is renewed")
    func permission() throws {
        var driver = TurnDriver()
        let id = try driver.allocate { $0.add(.lifetime, number: UInt32(3600)) }
        let actions = try permit(&driver, peer)
        #expect(actions.first == .permit(id, peer.host, ports: 1...65535))
        #expect(try driver.code(actions) == 0)
        #expect(driver.advance(.seconds(299)).isEmpty)
        #expect(try permit(&driver, peer).count == 1, "the plane hears of a new permission only")
        #expect(driver.advance(.seconds(299)).isEmpty)
        #expect(driver.advance(.seconds(2)) == [.revoke(id, peer.host)])
    }

    @Test("CreatePermission without a peer is 400, without an allocation 437, of another family 443")
    func permissionRefused() throws {
        var driver = TurnDriver()
        #expect(try driver.code(permit(&driver, peer)) == 437)
        try driver.allocate()
        #expect(try driver.code(permit(&driver)) == 400)
        let v6 = try #require(TransportAddress("2606:4700::1", port: 1))
        #expect(try driver.code(permit(&driver, v6)) == 443)
    }

    @Test(
        "No peer that the policy refuses gets a permission or a channel: 403 (CVE-2020-26262, CVE-2026-27624)",
        arguments: [
            "127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254", "::1", "::", "224.0.0.1",
        ])
    func policy(text: String) throws {
        var driver = TurnDriver()
        try driver.allocate { $0.add(.additionalAddressFamily, family: .v6) }
        let bad = try #require(TransportAddress(text, port: 80))
        #expect(try driver.code(permit(&driver, bad)) == 403)
        #expect(try driver.code(driver.bind(0x4000, bad)) == 403)
        let mixed = try permit(&driver, peer, bad)
        #expect(try driver.code(mixed) == 403)
        #expect(mixed.count == 1, "all or none")
    }

    @Test("A channel has one peer and a peer one channel; anything else is 400")
    func channels() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        let first = try driver.bind(0x4000, peer)
        #expect(first.contains(.bindChannel(id, 0x4000, peer)))
        #expect(first.contains(.permit(id, peer.host, ports: 1...65535)))
        #expect(try driver.bind(0x4000, peer).count == 1, "a renewal is nothing new to the plane")
        #expect(try driver.code(driver.bind(0x4000, peer.withPort(4001))) == 400)
        #expect(try driver.code(driver.bind(0x4001, peer)) == 400)
        #expect(try driver.code(driver.bind(0x4001, peer.withPort(4001))) == 0)
        for number: UInt16 in [0, 0x3fff, 0x5000, 0x7fff, 0xffff] {
            #expect(try driver.code(driver.bind(number, peer.withPort(9))) == 400)
        }
        #expect(try driver.code(driver.ask(.channelBind) { $0.add(channelNumber: 0x4003) }) == 400)
        #expect(try driver.code(driver.bind(0x4003, peer.withPort(0))) == 403)
    }

    @Test("A server with legacy channels takes the channel numbers of RFC 5766")
    func legacyChannels() throws {
        var driver = TurnDriver { $0.channelNumbers = ChannelDataHeader.legacyChannelNumbers }
        try driver.allocate()
        #expect(try driver.code(driver.bind(0x7ffe, peer)) == 0)
        #expect(try driver.code(driver.bind(0x7fff, peer.withPort(1))) == 0)
        #expect(try driver.code(driver.bind(0x8000, peer.withPort(2))) == 400)
    }

    @Test("A channel ends after 600 s, its permission after 300 s")
    func channelExpiry() throws {
        var driver = TurnDriver()
        let id = try driver.allocate { $0.add(.lifetime, number: UInt32(3600)) }
        _ = try driver.bind(0x4000, peer)
        #expect(driver.advance(.seconds(301)) == [.revoke(id, peer.host)])
        #expect(driver.advance(.seconds(300)) == [.unbindChannel(id, 0x4000)])
    }

    @Test("Permissions and channels of one allocation are bounded: 508")
    func bounds() throws {
        var driver = TurnDriver {
            $0.permissionsMax = 2
            $0.channelsMax = 1
        }
        try driver.allocate()
        #expect(try driver.code(permit(&driver, peer, TransportAddress(v4: 0x0808_0809, port: 1))) == 0)
        #expect(try driver.code(permit(&driver, TransportAddress(v4: 0x0808_080a, port: 1))) == 508)
        #expect(try driver.code(driver.bind(0x4000, peer)) == 0)
        #expect(try driver.code(driver.bind(0x4001, peer.withPort(1))) == 508)
        #expect(try driver.code(driver.bind(0x4000, peer)) == 0)
    }

    @Test("A Send indication passes to a permitted peer only, and is never answered")
    func send() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        func indication(_ to: TransportAddress) -> [TurnAction] {
            var writer = StunWriter(StunMessageType(.indication, .send), driver.transaction())
            writer.add(.xorPeerAddress, xorAddress: to)
            writer.add(.dontFragment, [])
            writer.add(.data, [1, 2, 3])
            return driver.send(writer, on: TurnDriver.flow())
        }
        #expect(indication(peer).isEmpty)
        _ = try permit(&driver, peer)
        #expect(indication(peer.withPort(7)) == [.sendToPeer(id, peer.withPort(7), [1, 2, 3], dontFragment: true)])
        #expect(indication(peer.withPort(0)).isEmpty)
        #expect(indication(TransportAddress(v4: 0x0808_0809, port: 7)).isEmpty)
    }

    @Test("An ICMP error of a permitted peer is told in a Data indication (RFC 8656 §11.5)")
    func icmp() throws {
        var driver = TurnDriver()
        let id = try driver.allocate()
        let icmp = StunICMP(type: 3, code: 3, errorData: 0)
        let number = driver.transaction()
        #expect(driver.machine.peerUnreachable(id, peer: peer, icmp: icmp, transaction: number, at: driver.now).isEmpty)
        _ = try permit(&driver, peer)
        let actions = driver.machine.peerUnreachable(id, peer: peer, icmp: icmp, transaction: number, at: driver.now)
        let told = try #require(try driver.answer(actions))
        #expect(told.type == StunMessageType(.indication, .data))
        #expect(try told.icmp() == icmp)
        #expect(try told.xorAddress(.xorPeerAddress) == peer)
    }

    @Test("A cluster's own address is a peer at relays' ports only")
    func ownAddress() throws {
        let node = TransportAddress(v4: 0x0606_0606, port: 0)
        var driver = TurnDriver { $0.peers = PeerPolicy(own: [node], relayPorts: 50000...51000) }
        let id = try driver.allocate()
        #expect(try permit(&driver, node).first == .permit(id, node, ports: 50000...51000))
        #expect(try driver.code(driver.bind(0x4000, node.withPort(22))) == 403)
        #expect(try driver.code(driver.bind(0x4000, node.withPort(50004))) == 0)
    }
}

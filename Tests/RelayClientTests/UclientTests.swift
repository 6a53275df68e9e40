import Testing

@Suite("coturn's client on this relay (RFC 8656, D8)")
struct UclientTests {
    /// Runs turnutils_uclient, which makes its own credentials from the secret (REST), and expects all messages back.
    private func expectAllBack(_ relay: RelayProcess, _ options: [String], clients: Int = 4) async throws {
        let outcome = try await Outcome.of(
            [
                "turnutils_uclient", "-W", RelayProcess.secret, "-u", "camera", "-p", "\(relay.port)", "-m",
                "\(clients)", "-n", "100", "-l", "171", "-z", "5",
            ] + options + [relay.address])
        let sums = outcome.output.matches(of: /tot_send_msgs=(\d+), tot_recv_msgs=(\d+)/)
        let last = try #require(sums.last, "\(outcome.all) \(relay.log)")
        #expect(Int(last.1) == 100 * clients, "\(outcome.all)")
        #expect(last.1 == last.2, "\(outcome.all) \(relay.log)")
        #expect(outcome.output.contains("Total lost packets 0 (0.000000%)"), "\(outcome.all)")
        #expect(outcome.status == 0)
        #expect(relay.stop() == 0)
    }

    @Test(
        "All messages to a peer that echoes come back: UDP and TCP, channels and Send indications",
        .enabled(if: OtherClients.uclient != nil && OtherClients.peer != nil, "Debian's coturn is not installed"),
        arguments: [false, true], [false, true])
    func echo(isTCP: Bool, usesSend: Bool) async throws {
        let relay = try await RelayProcess(options: ["--legacy-channels"])
        let port = try await RelayProcess.freePort(relay.address)
        let peer = try Child(["turnutils_peer", "-L", relay.address, "-p", "\(port)"])
        defer { peer.terminate() }
        try await expectAllBack(
            relay,
            (isTCP ? ["-t"] : []) + (usesSend ? ["-s"] : []) + ["-c", "-e", relay.address, "-r", "\(port)"])
    }

    @Test(
        "All messages from relayed address to relayed address arrive, on ports of a pair that was reserved",
        .enabled(if: OtherClients.uclient != nil, "Debian's coturn is not installed"), arguments: [false, true])
    func clientToClient(isTCP: Bool) async throws {
        let relay = try await RelayProcess(options: ["--legacy-channels"])
        try await expectAllBack(relay, (isTCP ? ["-t"] : []) + ["-y"])
    }
}

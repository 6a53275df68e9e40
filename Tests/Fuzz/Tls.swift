import ApusCore
import ApusGateway
import ApusTLS
import ApusTransport
import Foundation
import NIOCore
import NIOEmbedded

/// D7, RFC 8446: ciphertext reaches a server's connection cut anywhere, changed, doubled or left out. What comes out is
/// what the client wrote, in order, up to the first change; where nothing was changed it is all of it, both ways.
///
/// The input is a list of events, each a byte: its lowest three bits say what happens, the others how much of it.
func fuzzTls(_ input: [UInt8]) {
    guard let world, let first = input.first, let run = TLSRun(world, resumes: first & 1 == 1) else { return }
    for event in input.dropFirst().prefix(128) { run.step(event) }
    run.finish()
}

/// What all runs share: certificates, which are made once, and the newest ticket.
private struct World: Sendable {
    let server: TLSServerContext
    let client: TLSClientContext
    let resumption = TLSResumption()
}

private let world: World? = {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("apus-fuzz-\(UUID())").path
    defer { try? FileManager.default.removeItem(atPath: folder) }
    let (authority, certificate, key) = (folder + "/ca.pem", folder + "/server.pem", folder + "/server.key")
    let keys = TLSTicketKeys(clusterKey: [UInt8](repeating: 7, count: 32), lifetime: .seconds(3600))
    do {
        try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
        let issued = try ClusterPKI.makeAuthority(cluster: ClusterID(unchecked: "fuzz"))
        try ClusterPKI.write(issued, certificate: authority, key: folder + "/ca.key")
        try ClusterPKI.write(try ClusterPKI.issueClientEndpoint(authority: issued), certificate: certificate, key: key)
        return World(
            server: try TLSServerContext(certificateFile: certificate, keyFile: key, tickets: keys),
            client: try TLSClientContext(authorityFile: authority))
    } catch {
        preconditionFailure("there is no certificate: \(error)")
    }
}()

/// A connection: the server's handler in a channel of its own, the client's session beside it.
private final class TLSRun {
    private let channel = EmbeddedChannel()
    private let handler: TLSServerHandler
    private var client: TLSSession
    private var isShakenHands = false
    /// What was written by each side, and what came out at the other, in bytes of ``content(_:count:)``.
    private var (clientWrote, serverRead, serverWrote, clientRead) = (0, 0, 0, 0)
    /// Ciphertext on its way.
    private var (toServer, toClient) = ([UInt8](), [UInt8]())
    /// Nothing was changed, and nobody has closed.
    private var isIntact = true
    private var isClientOver = false

    init?(_ world: World, resumes: Bool) {
        handler = TLSServerHandler(context: world.server)
        guard
            let session = TLSSession(
                world.client, host: "localhost", address: nil, resumption: resumes ? world.resumption : nil)
        else { return nil }
        client = session
        guard (try? channel.pipeline.syncOperations.addHandler(handler)) != nil else { return nil }
        guard let address = try? SocketAddress(ipAddress: "127.0.0.1", port: 1) else { return nil }
        channel.connect(to: address, promise: nil)
        feedClient([])
    }

    func step(_ event: UInt8) {
        let amount = Int(event >> 3)
        // 1 to 65,535 bytes, in steps that lie around powers of two.
        let size = (1 << (amount / 2)) + (amount % 2 == 1 ? -1 : 0)
        switch event & 7 {
        case 0: deliverToServer(size)
        case 1: deliverToClient(size)
        case 2: clientWrites(size)
        case 3: serverSends(size)
        case 4: change(at: size)
        case 5: disorder(amount)
        case 6: closeClient()
        default: closeServer(amount)
        }
        collect()
    }

    /// Everything that is on its way arrives; then what was written must have come out.
    func finish() {
        for _ in 0..<32 where !toServer.isEmpty || !toClient.isEmpty {
            deliverToServer(toServer.count)
            deliverToClient(toClient.count)
        }
        if isIntact {
            precondition(isShakenHands, "an undisturbed handshake fails")
            precondition(serverRead == clientWrote, "\(serverRead) of \(clientWrote) bytes came out at the server")
            precondition(clientRead == serverWrote, "\(clientRead) of \(serverWrote) bytes came out at the client")
        }
        channel.close(promise: nil)
        channel.embeddedEventLoop.advanceTime(by: .seconds(5))
        collect()
        precondition(!channel.isActive, "a closed connection is open")
    }

    // MARK: - Events

    private func clientWrites(_ count: Int) {
        guard isShakenHands, !isClientOver, count > 0 else { return }
        let bytes = Self.content(clientWrote, count: count)
        // SAFETY: the session copies what it is given within the closure.
        isClientOver = bytes.withUnsafeBytes { client.write($0) } == nil
        guard !isClientOver else { return }
        clientWrote += count
        takeFromClient()
    }

    private func serverSends(_ count: Int) {
        // Before the handshake is done nothing is sent, and the client cannot know.
        guard isShakenHands, isIntact, serverRead > 0, count > 0 else { return }
        handler.send(ByteBuffer(bytes: Self.content(serverWrote, count: count)), now: .zero)
        serverWrote += count
    }

    private func change(at offset: Int) {
        guard !toServer.isEmpty else { return }
        toServer[offset % toServer.count] ^= UInt8(1 << (offset % 8))
        isIntact = false
    }

    /// A part is left out, doubled, or something else comes in between.
    private func disorder(_ amount: Int) {
        isIntact = false
        let count = min(toServer.count, 1 << (amount % 8))
        switch amount / 8 {
        case 0: toServer.removeFirst(count)
        case 1: toServer.insert(contentsOf: Array(toServer.prefix(count)), at: 0)
        case 2: toServer.insert(contentsOf: Self.content(amount, count: count + 1), at: 0)
        default: toServer.insert(contentsOf: [0x16, 0x03, 0x01, 0x40, 0x01, 0x01], at: 0)
        }
    }

    private func closeClient() {
        guard !isClientOver else { return }
        isIntact = false
        client.close()
        takeFromClient()
        isClientOver = true
    }

    private func closeServer(_ amount: Int) {
        isIntact = false
        if amount % 2 == 0 { channel.close(promise: nil) }
        channel.embeddedEventLoop.advanceTime(by: .milliseconds(Int64(amount) * 100))
    }

    // MARK: - On the way

    private func deliverToServer(_ count: Int) {
        let part = Array(toServer.prefix(count))
        guard !part.isEmpty else { return }
        toServer.removeFirst(part.count)
        guard channel.isActive else { return }
        do {
            try channel.writeInbound(ByteBuffer(bytes: part))
        } catch {
            precondition(!isIntact, "the server refuses what nobody changed: \(error)")
        }
        collect()
    }

    private func deliverToClient(_ count: Int) {
        let part = Array(toClient.prefix(count))
        guard !part.isEmpty else { return }
        toClient.removeFirst(part.count)
        feedClient(part)
    }

    /// In memory that ends where the bytes end, so that a sanitizer sees each byte that is read beyond.
    private func feedClient(_ bytes: [UInt8]) {
        guard !isClientOver else { return }
        let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: bytes.count, alignment: 1)
        defer { memory.deallocate() }
        memory.copyBytes(from: bytes)
        client.feed(UnsafeRawBufferPointer(memory))
        // SAFETY: what the session was given is forgotten before the memory is.
        defer { client.feed(UnsafeRawBufferPointer(start: nil, count: 0)) }
        if !isShakenHands {
            switch client.handshake() {
            case true?: isShakenHands = true
            case false?: return takeFromClient()
            case nil:
                precondition(!isIntact, "the client refuses what nobody changed: \(client.failure())")
                isClientOver = true
                return takeFromClient()
            }
        }
        var room = [UInt8](repeating: 0, count: 1 << 14)
        while !isClientOver {
            // SAFETY: the pointer is valid within the closure.
            switch room.withUnsafeMutableBytes({ client.read(into: $0) }) {
            case .bytes(let count):
                precondition(room.prefix(count).elementsEqual(Self.content(clientRead, count: count)), "other bytes")
                clientRead += count
            case .wantsMore: return takeFromClient()
            case .ended, .failed:
                precondition(!isIntact, "the client's connection ends though nobody closed it")
                takeFromClient()
                isClientOver = true
            }
        }
    }

    private func takeFromClient() {
        if let bytes = client.takePending() { toServer += bytes.readableBytesView }
    }

    /// What the server's channel has for both sides.
    private func collect() {
        while let bytes = try? channel.readInbound(as: ByteBuffer.self) {
            let expected = Self.content(serverRead, count: bytes.readableBytes)
            precondition(bytes.readableBytesView.elementsEqual(expected), "what nobody wrote came out at the server")
            serverRead += bytes.readableBytes
            precondition(serverRead <= clientWrote, "more came out than went in")
        }
        while let bytes = try? channel.readOutbound(as: ByteBuffer.self) { toClient += bytes.readableBytesView }
    }

    /// The stream that both sides write, from a place in it.
    private static func content(_ start: Int, count: Int) -> [UInt8] {
        (start..<start + count).map { UInt8(truncatingIfNeeded: $0 &* 167 &+ $0 >> 8) }
    }
}

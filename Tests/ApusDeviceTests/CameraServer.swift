import ApusClient
import ApusCore
import ApusDevice
import ApusMedia
import ApusThreads
import Foundation
import Glibc
import NIOCore
import Synchronization

/// A small RTSP camera on loopback (RFC 2326, RFC 6184): H.264 over the control connection.
///
/// Each connection sends `frames` once, at their time, then closes; `connectionCount` says how many came. Those after
/// the first send `then`, if it is given.
final class CameraServer: Sendable {
    let port: UInt16
    let connectionCount = Atomic<Int>(0)
    private let listener: Int32
    private let thread = Mutex<OSThread?>(nil)
    private let isStopped = Atomic<Bool>(false)

    init(
        configuration: TrackConfiguration, frames: [Delivered.Frame], status: String = "200 OK",
        then: (configuration: TrackConfiguration, frames: [Delivered.Frame])? = nil
    ) throws {
        let listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue), 0)
        self.listener = listener
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var length = socklen_t(MemoryLayout<sockaddr_in>.size)
        // SAFETY: the pointers are used only inside the calls.
        withUnsafeMutablePointer(to: &address) { address in
            address.withMemoryRebound(to: sockaddr.self, capacity: 1) { address in
                _ = bind(listener, address, length)
                _ = listen(listener, 4)
                _ = getsockname(listener, address, &length)
            }
        }
        port = UInt16(bigEndian: address.sin_port)
        let started = try OSThread(name: "camera") { [self] in
            while !isStopped.load(ordering: .relaxed) {
                let connection = accept(listener, nil, nil)
                guard connection >= 0 else { return }
                let number = connectionCount.add(1, ordering: .relaxed).newValue
                if number > 1, let then {
                    serve(connection, then.configuration, then.frames, status)
                } else {
                    serve(connection, configuration, frames, status)
                }
                Glibc.close(connection)
            }
        }
        thread.withLock { $0 = started }
    }

    func stop() {
        isStopped.store(true, ordering: .relaxed)
        shutdown(listener, Int32(SHUT_RDWR))
        Glibc.close(listener)
        thread.withLock { $0.take() }?.join()
    }

    private func serve(
        _ connection: Int32, _ configuration: TrackConfiguration, _ frames: [Delivered.Frame], _ status: String
    ) {
        while let request = readRequest(connection) {
            let lines = request.split(separator: "\r\n")
            let method = lines.first?.split(separator: " ").first ?? ""
            let number = lines.first { $0.hasPrefix("CSeq:") } ?? "CSeq: 0"
            var head = "RTSP/1.0 \(method == "DESCRIBE" ? status : "200 OK")\r\n\(number)\r\n"
            var body = ""
            switch method {
            case "OPTIONS": head += "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
            case "DESCRIBE" where status == "200 OK":
                body = description(configuration)
                head += "Content-Type: application/sdp\r\nContent-Length: \(body.utf8.count)\r\n"
            case "SETUP": head += "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 1\r\n"
            default: head += "Session: 1\r\n"
            }
            send(connection, Array("\(head)\r\n\(body)".utf8))
            if method == "PLAY" { return play(connection, frames) }
        }
    }

    private func readRequest(_ connection: Int32) -> String? {
        var bytes: [UInt8] = []
        var byte: UInt8 = 0
        while bytes.count < 8192, read(connection, &byte, 1) == 1 {
            bytes.append(byte)
            if bytes.suffix(4) == [13, 10, 13, 10] { return String(decoding: bytes, as: UTF8.self) }
        }
        return nil
    }

    private func description(_ configuration: TrackConfiguration) -> String {
        let sets = ParameterSets(record: configuration.extraData, codec: .h264)?.all ?? []
        let texts = sets.map { Data($0).base64EncodedString() }.joined(separator: ",")
        return
            "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n"
            + "a=fmtp:96 packetization-mode=1;sprop-parameter-sets=\(texts)\r\na=control:track0\r\n"
    }

    private func play(_ connection: Int32, _ frames: [Delivered.Frame]) {
        var sequence: UInt16 = 0
        let start = MonotonicTime.now()
        for frame in frames {
            guard (start + .microseconds(frame.pts)).sleep(unless: { isStopped.load(ordering: .relaxed) }) else {
                return
            }
            let bytes = Array(frame.payload.readableBytesView)
            let units = NALUnits.ranges(lengthPrefixed: bytes, prefix: 4) ?? []
            for (index, unit) in units.enumerated() {
                let parts = packets(Array(bytes[unit]))
                for (number, part) in parts.enumerated() {
                    let isLast = index == units.count - 1 && number == parts.count - 1
                    var packet = ByteBuffer()
                    packet.writeMultipleIntegers(UInt8(0x24), UInt8(0), UInt16(12 + part.count))
                    packet.writeMultipleIntegers(UInt8(0x80), UInt8(96 | (isLast ? 0x80 : 0)), sequence)
                    packet.writeMultipleIntegers(UInt32(truncatingIfNeeded: frame.pts * 9 / 100), UInt32(0x1234))
                    packet.writeBytes(part)
                    sequence &+= 1
                    guard send(connection, Array(packet.readableBytesView)) else { return }
                }
            }
        }
    }

    /// One unit as a single packet, or as FU-A fragments (RFC 6184 §5.8).
    private func packets(_ unit: [UInt8]) -> [[UInt8]] {
        guard unit.count > 1200 else { return [unit] }
        var parts: [[UInt8]] = []
        var index = 1
        while index < unit.count {
            let end = min(index + 1200, unit.count)
            let flags: UInt8 = (index == 1 ? 0x80 : 0) | (end == unit.count ? 0x40 : 0)
            parts.append([unit[0] & 0x60 | 28, flags | unit[0] & 0x1f] + unit[index..<end])
            index = end
        }
        return parts
    }

    @discardableResult
    private func send(_ connection: Int32, _ bytes: [UInt8]) -> Bool {
        Glibc.send(connection, bytes, bytes.count, Int32(MSG_NOSIGNAL)) == bytes.count
    }
}

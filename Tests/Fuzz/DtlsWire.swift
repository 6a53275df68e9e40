import CApusTLS
import Glibc

/// Records of one side on their way to the other, each with other bytes.
struct DTLSRecords {
    let salt: Int
    private var sizes: [Int] = []
    private var arrived: Set<Int> = []
    /// What may be missing in the end.
    private var excused: Set<Int> = []

    init(salt: Int) { self.salt = salt }

    var isWhole: Bool { sizes.indices.allSatisfy { arrived.contains($0) || excused.contains($0) } }

    /// The next record: its number first, so that no two are equal.
    mutating func next(size: Int) -> (number: Int, bytes: [UInt8]) {
        sizes.append(max(size, 4))
        return (sizes.count - 1, content(sizes.count - 1))
    }

    mutating func excuse(_ numbers: some Sequence<Int>) { excused.formUnion(numbers) }
    mutating func excuseAll() { excuse(sizes.indices) }

    mutating func arrive(_ bytes: ArraySlice<UInt8>) {
        let number = bytes.prefix(4).reduce(0) { $0 << 8 | Int($1) }
        precondition(bytes.count >= 4 && sizes.indices.contains(number), "what nobody wrote came out")
        precondition(bytes.elementsEqual(content(number)), "other bytes than were written came out")
        precondition(arrived.insert(number).inserted, "a record came out twice")
    }

    private func content(_ number: Int) -> [UInt8] {
        (0..<sizes[number]).map {
            UInt8(truncatingIfNeeded: $0 < 4 ? number >> (24 - 8 * $0) : $0 &* 167 &+ number &* 31 &+ salt)
        }
    }
}

/// What a DTLS run puts on the wire besides what its two sides say, and what it reads there.
enum DTLSWire {
    static let sizes = [
        4, 5, 12, 13, 31, 32, 255, 256, 1171, 1200, 1472, 4096, 9000, 16383, 16384, 100, 512, 2048,
    ]

    /// Sizes of datagrams that nobody sent who takes part, to the largest that UDP has.
    static let forgedSizes = [
        0, 1, 12, 13, 14, 25, 26, 37, 64, 1200, 16397, 16421, 16717, 16718, 32768, 65507,
    ]

    /// Records by the dozen, or what looks like records.
    static func forged(_ amount: Int) -> [UInt8] {
        let size = forgedSizes[amount % 16]
        let (type, epoch, payload): (UInt8, UInt8, [UInt8]) =
            switch amount / 16 {
            case 0: (0, 0, [])
            case 1: (23, 0, [UInt8](repeating: 9, count: 40))
            case 2: (23, 1, [])
            case 3: (23, 1, [UInt8](repeating: 9, count: 15))
            case 4: (23, 1, [UInt8](repeating: 9, count: 24))
            case 5: (23, 1, [UInt8](repeating: 9, count: 1000))
            case 6: (21, 0, [2, 40])
            case 7: (21, 1, [1, 0])
            case 8: (20, 0, [1])
            // Fragments of a ClientKeyExchange of 16 MB, and of messages that are not due yet.
            case 9: (22, 0, [16, 255, 255, 255, 0, 2, 0, 0, 0, 0, 0, 1, 7])
            case 10: (22, 0, [16, 0, 0, 66, 0, 2, 0, 0, 60, 0, 0, 20] + [UInt8](repeating: 1, count: 20))
            case 11: (22, 0, [20, 0, 64, 0, 0, 9, 0, 0, 0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8])
            case 12: (22, 0, [1, 0, 0, 43, 0, 0, 0, 0, 0, 0, 0, 43] + [UInt8](repeating: 0xFD, count: 43))
            case 13: (22, 1, [20, 0, 0, 12, 0, 3, 0, 0, 0, 0, 0, 12] + [UInt8](repeating: 5, count: 28))
            case 14: (24, 0, [1, 64, 0])
            default: (255, 255, [UInt8](repeating: 255, count: 99))
            }
        var bytes: [UInt8] = []
        while bytes.count < size {
            let number = UInt8(truncatingIfNeeded: bytes.count)
            bytes += [type, 0xFE, 0xFD, 0, epoch, 0, 0, 0, 1, number, number]
            bytes += [UInt8(payload.count >> 8), UInt8(payload.count & 255)] + payload
        }
        return Array(bytes.prefix(size))
    }

    /// The cookie of a HelloVerifyRequest (RFC 6347 §4.2.1).
    static func cookie(of datagram: [UInt8]) -> [UInt8]? {
        guard datagram.count > 28, datagram[0] == 22, datagram[13] == 3 else { return nil }
        return Array(datagram[28...].prefix(Int(datagram[27])))
    }

    /// Handshake messages in the clear, but for hellos, as fragments of 20 bytes (RFC 6347 §4.2.3), each in a datagram
    /// of its own. All records of epoch 0 get new numbers, of which there are eight for each old one.
    static func split(_ datagram: [UInt8]) -> [[UInt8]] {
        var (parts, rest) = ([[UInt8]](), datagram[...])
        while rest.count >= 13 {
            let length = Int(rest[rest.startIndex + 11]) << 8 | Int(rest[rest.startIndex + 12])
            var header = Array(rest.prefix(13))
            let payload = Array(rest.dropFirst(13).prefix(length))
            rest = rest.dropFirst(13 + length)
            let isClear = header[3] == 0 && header[4] == 0
            let first = header[5...10].reduce(0) { $0 << 8 | Int($1) } * 8
            func renumber(_ part: Int) {
                for place in 0..<6 { header[10 - place] = UInt8(truncatingIfNeeded: (first + part) >> (8 * place)) }
            }
            if isClear { renumber(0) }
            guard isClear, header[0] == 22, payload.count > 12, payload[0] != 1 else {
                parts.append(header + payload)
                continue
            }
            for (part, start) in stride(from: 12, to: payload.count, by: 20).enumerated() {
                let fragment = payload[start...].prefix(20)
                renumber(part)
                header[11...12] = [0, UInt8(12 + fragment.count)]
                let place = [0, UInt8((start - 12) >> 8), UInt8((start - 12) & 255), 0, 0, UInt8(fragment.count)]
                parts.append(header + payload[..<6] + place + fragment)
            }
        }
        return parts
    }
}

/// Memory that ends where the bytes end, so that a sanitizer sees each byte that is read beyond.
func withExactMemory<Result>(_ bytes: [UInt8], _ body: (UnsafeRawPointer, Int) -> Result) -> Result {
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: bytes.count, alignment: 1)
    defer { memory.deallocate() }
    memory.copyBytes(from: bytes)
    guard let start = memory.baseAddress else { preconditionFailure("out of memory") }
    return body(start, bytes.count)
}

/// A datagram socket at 127.0.0.`host`, written as an IPv6 address if so wished.
final class LoopbackDatagrams {
    let socket: CInt
    private var address = sockaddr_storage()
    private let length: socklen_t
    private var room = [UInt8](repeating: 0, count: 1 << 16)

    var port: UInt16 {
        withUnsafeBytes(of: &address) { UInt16(bigEndian: $0.load(fromByteOffset: 2, as: UInt16.self)) }
    }

    /// It hears `peer` only, if there is one; nil where the port is taken.
    init?(isV6: Bool, host: UInt32, port: UInt16, peer: LoopbackDatagrams?) {
        let family = isV6 ? AF_INET6 : AF_INET
        socket = Glibc.socket(family, Int32(SOCK_DGRAM.rawValue), 0)
        length = socklen_t(isV6 ? MemoryLayout<sockaddr_in6>.size : MemoryLayout<sockaddr_in>.size)
        // SAFETY: sockaddr_storage has room for every address; family and port are at the same place in both.
        withUnsafeMutableBytes(of: &address) { bytes in
            bytes.storeBytes(of: sa_family_t(family), as: sa_family_t.self)
            bytes.storeBytes(of: port.bigEndian, toByteOffset: 2, as: UInt16.self)
            if isV6 { bytes.storeBytes(of: 0xFFFF, toByteOffset: 18, as: UInt16.self) }
            bytes.storeBytes(of: (127 << 24 | host).bigEndian, toByteOffset: isV6 ? 20 : 4, as: UInt32.self)
        }
        var size = length
        guard withAddress({ bind(socket, $0, length) }) == 0, withAddress({ getsockname(socket, $0, &size) }) == 0,
            peer?.withAddress({ connect(socket, $0, length) }) ?? 0 == 0
        else { return nil }
    }

    deinit { close(socket) }

    private func withAddress<Result>(_ body: (UnsafeMutablePointer<sockaddr>) -> Result) -> Result {
        withUnsafeMutablePointer(to: &address) { $0.withMemoryRebound(to: sockaddr.self, capacity: 1, body) }
    }

    /// Shows a listener a datagram that came from this address.
    func listen(_ dtls: OpaquePointer, _ bytes: UnsafeRawPointer, _ size: Int, _ minute: UInt64) -> CInt {
        withAddress { apus_dtls_listen(dtls, bytes, size, $0, length, minute) }
    }

    /// The oldest datagram that came.
    func receive() -> [UInt8]? {
        let count = recv(socket, &room, room.count, CInt(MSG_DONTWAIT))
        return count < 0 ? nil : Array(room.prefix(count))
    }

    func waitsFor(milliseconds: CInt) -> Bool {
        var entry = pollfd(fd: socket, events: Int16(POLLIN), revents: 0)
        return poll(&entry, 1, milliseconds) > 0
    }
}

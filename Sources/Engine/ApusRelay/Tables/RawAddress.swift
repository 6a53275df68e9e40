package import ApusTraversal
import CApusNet
import Glibc

/// A socket address of either family in the kernel's form, stored in place so that messages can refer to it.
package struct RawAddress {
    /// Large enough for both families.
    private var storage = sockaddr_in6()
    /// The number of its bytes in use.
    package private(set) var length: UInt32 = 0

    package init() {}

    package init(_ address: TransportAddress) {
        // SAFETY: the pointer is to the storage's own 28 bytes and does not leave the closure.
        length = withUnsafeMutableBytes(of: &storage) { bytes in
            bytes.storeBytes(of: address.port.bigEndian, toByteOffset: 2, as: UInt16.self)
            switch address.family {
            case .v4:
                bytes.storeBytes(of: sa_family_t(AF_INET), as: sa_family_t.self)
                bytes.storeBytes(
                    of: UInt32(truncatingIfNeeded: address.low).bigEndian, toByteOffset: 4, as: UInt32.self)
                return UInt32(MemoryLayout<sockaddr_in>.size)
            case .v6:
                bytes.storeBytes(of: sa_family_t(AF_INET6), as: sa_family_t.self)
                bytes.storeBytes(of: address.high.bigEndian, toByteOffset: 8, as: UInt64.self)
                bytes.storeBytes(of: address.low.bigEndian, toByteOffset: 16, as: UInt64.self)
                return UInt32(MemoryLayout<sockaddr_in6>.size)
            }
        }
    }

    /// Passes the address to a system call.
    func withSocketAddress<Result>(_ body: (UnsafePointer<sockaddr>) -> Result) -> Result {
        // SAFETY: the storage has the layout of its family's address, and is valid during the call.
        withUnsafeBytes(of: storage) { body($0.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: sockaddr.self)) }
    }

    /// Reads an address that the kernel wrote.
    ///
    /// - Parameter bytes: at least 28 bytes.
    @inline(__always)
    package static func read(_ bytes: UnsafeRawPointer) -> TransportAddress? {
        // SAFETY: every offset is below 28.
        let port = UInt16(bigEndian: bytes.load(fromByteOffset: 2, as: UInt16.self))
        switch Int32(bytes.load(as: sa_family_t.self)) {
        case AF_INET:
            return TransportAddress(
                v4: UInt32(bigEndian: bytes.load(fromByteOffset: 4, as: UInt32.self)), port: port)
        case AF_INET6:
            return TransportAddress(
                v6High: UInt64(bigEndian: bytes.loadUnaligned(fromByteOffset: 8, as: UInt64.self)),
                low: UInt64(bigEndian: bytes.loadUnaligned(fromByteOffset: 16, as: UInt64.self)), port: port)
        default: return nil
        }
    }

    /// The key of an address that the kernel wrote, without an intermediate value.
    @inline(__always)
    static func key(_ bytes: UnsafeRawPointer, scope: UInt32) -> FlatTable.Key {
        // SAFETY: every offset is below 28.
        let port = UInt16(bigEndian: bytes.load(fromByteOffset: 2, as: UInt16.self))
        if Int32(bytes.load(as: sa_family_t.self)) == AF_INET {
            let low = UInt64(UInt32(bigEndian: bytes.load(fromByteOffset: 4, as: UInt32.self)))
            return FlatTable.Key(high: 0, low: low, meta: FlatTable.Key.meta(family: 1, port: port, scope: scope))
        }
        let high = UInt64(bigEndian: bytes.loadUnaligned(fromByteOffset: 8, as: UInt64.self))
        let low = UInt64(bigEndian: bytes.loadUnaligned(fromByteOffset: 16, as: UInt64.self))
        return FlatTable.Key(high: high, low: low, meta: FlatTable.Key.meta(family: 2, port: port, scope: scope))
    }

    /// The address that a socket is bound to.
    static func local(of socket: Int32) -> TransportAddress? {
        var storage = sockaddr_in6()
        var length = socklen_t(MemoryLayout<sockaddr_in6>.size)
        // SAFETY: the kernel writes at most `length` bytes into the storage.
        return withUnsafeMutableBytes(of: &storage) { bytes in
            let address = bytes.baseAddress.unsafelyUnwrapped
            guard apus_local_address(socket, address.assumingMemoryBound(to: sockaddr.self), &length) == 0 else {
                return nil
            }
            return read(address)
        }
    }
}

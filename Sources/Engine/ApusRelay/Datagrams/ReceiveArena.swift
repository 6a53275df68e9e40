import CApusNet
import Glibc

/// Buffers for a batch of received datagrams, each as large as what the kernel may join.
///
/// Concurrency model: confined to the plane's thread.
package struct ReceiveArena: ~Copyable {
    /// The most messages of one batch.
    package static let depth = 64
    /// The size of a buffer, and the distance between two: an odd number of cache lines, so that the heads of all
    /// buffers, which every packet accesses, are not in the same few cache sets.
    private static let bytesMax = 65_536
    private static let stride = 65_536 + 448
    private static let nameBytes = 64

    private let memory: UnsafeMutableRawPointer
    private let names: UnsafeMutableRawPointer
    private let controls: UnsafeMutableRawPointer
    private let vectors: UnsafeMutablePointer<iovec>
    private let messages: UnsafeMutablePointer<apus_message>

    package init() {
        let depth = Self.depth
        memory = .allocate(byteCount: depth * Self.stride, alignment: 4_096)
        names = .allocate(byteCount: depth * Self.nameBytes, alignment: 64)
        controls = .allocate(byteCount: depth * Int(APUS_CONTROL_BYTES), alignment: 64)
        vectors = .allocate(capacity: depth)
        messages = .allocate(capacity: depth)
        names.initializeMemory(as: UInt8.self, repeating: 0, count: depth * Self.nameBytes)
        for index in 0..<depth {
            (vectors + index).initialize(
                to: iovec(iov_base: memory + index * Self.stride, iov_len: Self.bytesMax))
            (messages + index).initialize(to: apus_message())
            messages[index].header.msg_name = names + index * Self.nameBytes
            messages[index].header.msg_iov = vectors + index
            messages[index].header.msg_iovlen = 1
            messages[index].header.msg_control = controls + index * Int(APUS_CONTROL_BYTES)
        }
    }

    deinit {
        memory.deallocate()
        names.deallocate()
        controls.deallocate()
        vectors.deallocate()
        messages.deallocate()
    }

    /// Receives waiting messages into the places from `first` on.
    ///
    /// - Returns: the number of messages, or -errno.
    @inline(__always)
    package func receive(_ socket: Int32, first: Int, count: Int) -> Int {
        for index in first..<first &+ count {
            messages[index].header.msg_namelen = 28
            messages[index].header.msg_controllen = Int(APUS_CONTROL_BYTES)
        }
        return Int(apus_receive_messages(socket, messages + first, UInt32(truncatingIfNeeded: count)))
    }

    @inline(__always)
    package func base(_ index: Int) -> UnsafeMutableRawPointer { memory + index &* Self.stride }
    @inline(__always)
    package func name(_ index: Int) -> UnsafeRawPointer { UnsafeRawPointer(names + index &* Self.nameBytes) }
    @inline(__always)
    package func length(_ index: Int) -> Int { Int(messages[index].length) }
    /// The size of the consecutive datagrams in a message, of which the last may be shorter; and the marks of all of
    /// them (``SendBatch/marks``).
    @inline(__always)
    package func receipt(_ index: Int) -> (segment: Int, marks: UInt32) {
        let receipt = apus_read_receipt(messages + index)
        return (receipt.segment == 0 ? length(index) : Int(receipt.segment), receipt.marks)
    }
    /// True if the kernel truncated a message. This cannot happen unless a kernel joins more than an IP packet.
    @inline(__always)
    package func isCut(_ index: Int) -> Bool { messages[index].header.msg_flags & Int32(MSG_TRUNC) != 0 }
}

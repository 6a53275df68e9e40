import ApusCore
import CApusMemory
import Testing

@Suite("CRC-32C")
struct ChecksumTests {
    private func checksum(_ bytes: [UInt8]) -> UInt32 { apus_crc32c(0, bytes, bytes.count) }

    @Test("RFC 3720 B.4: the examples")
    func examples() {
        #expect(checksum([UInt8](repeating: 0, count: 32)) == 0x8a91_36aa)
        #expect(checksum([UInt8](repeating: 0xff, count: 32)) == 0x62a8_ab43)
        #expect(checksum(Array(0..<32)) == 0x46dd_794e)
        #expect(checksum(Array((0..<32).reversed())) == 0x113f_db5c)
        #expect(checksum(Array("123456789".utf8)) == 0xe306_9283)
        #expect(checksum([]) == 0)
    }

    @Test("The portable form gives the same, at all lengths and alignments, and in parts")
    func forms() {
        var random = SeededRandom(seed: 3)
        let bytes = (0..<300).map { _ in UInt8.random(in: 0...255, using: &random) }
        for start in 0..<9 {
            for end in start...bytes.count {
                let part = Array(bytes[start..<end])
                let whole = apus_crc32c_portable(0, part, part.count)
                bytes.withUnsafeBytes { all in
                    let place = UnsafeRawBufferPointer(rebasing: all[start..<end])
                    #expect(apus_crc32c(0, place.baseAddress, place.count) == whole)
                }
                let cut = part.count / 3
                let first = apus_crc32c(0, part, cut)
                #expect(apus_crc32c(first, Array(part[cut...]), part.count - cut) == whole)
            }
        }
    }
}

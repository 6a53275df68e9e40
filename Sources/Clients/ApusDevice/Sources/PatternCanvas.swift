import CApusMedia
import Glibc

/// Draws the test pattern into libav's planes: colour bars, a moving box, a band of noise that makes the encoder work,
/// and the frame's number and the wall clock in large digits.
///
/// Rows are copied rather than computed, so a picture costs well under a millisecond.
struct PatternCanvas {
    private let width: Int
    private let height: Int
    /// One row of each plane: eight vertical bars.
    private let bars: (luma: [UInt8], blue: [UInt8], red: [UInt8])
    /// The noise from which the band's rows are copied, at offsets that change with each frame.
    private let noise: [UInt8]
    /// Pixels of one dot of the digits.
    private let scale: Int

    /// Luma, blue and red difference of the bars, from white to black.
    private static let colours: [(UInt8, UInt8, UInt8)] = [
        (180, 128, 128), (162, 44, 142), (131, 156, 44), (112, 72, 58),
        (84, 184, 198), (65, 100, 212), (35, 212, 114), (40, 128, 128),
    ]

    init(width: Int, height: Int) {
        self.width = width
        self.height = height
        let count = Self.colours.count
        bars.luma = (0..<width).map { Self.colours[$0 * count / width].0 }
        bars.blue = (0..<width / 2).map { Self.colours[$0 * 2 * count / width].1 }
        bars.red = (0..<width / 2).map { Self.colours[$0 * 2 * count / width].2 }
        var seed: UInt32 = 0x9e37_79b9
        noise = (0..<width * 4).map { _ in
            seed = seed &* 1_664_525 &+ 1_013_904_223
            return UInt8(64 + seed >> 25)
        }
        scale = max(2, height / 90)
    }

    /// Draws picture `number` at wall clock `milliseconds` (Unix time).
    ///
    /// - Parameter frame: a writable YUV 4:2:0 picture of the canvas's size.
    func draw(number: UInt64, milliseconds: UInt64, into frame: UnsafeMutablePointer<AVFrame>) {
        guard let luma = frame.pointee.data.0, let blue = frame.pointee.data.1, let red = frame.pointee.data.2 else {
            return
        }
        // SAFETY: libav allocated `height` rows of `linesize` bytes (half of them for the colour
        // planes), and linesize is at least the plane's width; every row below stays in there.
        let line = Int(frame.pointee.linesize.0)
        for row in 0..<height { memcpy(luma + row * line, bars.luma, width) }
        for row in 0..<height / 2 {
            memcpy(blue + row * Int(frame.pointee.linesize.1), bars.blue, width / 2)
            memcpy(red + row * Int(frame.pointee.linesize.2), bars.red, width / 2)
        }
        drawSnow(number, luma, line)
        drawBox(number, luma, line)
        draw(text(number, milliseconds), luma, line)
    }

    private func drawSnow(_ number: UInt64, _ luma: UnsafeMutablePointer<UInt8>, _ line: Int) {
        var seed = UInt32(truncatingIfNeeded: number) &* 2_654_435_761 &+ 1
        for row in height * 13 / 16..<height * 15 / 16 {
            seed = seed &* 1_664_525 &+ 1_013_904_223
            let offset = Int(seed >> 8) % (width * 3)
            // SAFETY: `offset + width` is at most `4 * width`, the size of the noise.
            noise.withUnsafeBufferPointer { source in
                if let start = source.baseAddress { memcpy(luma + row * line, start + offset, width) }
            }
        }
    }

    private func drawBox(_ number: UInt64, _ luma: UnsafeMutablePointer<UInt8>, _ line: Int) {
        let side = height / 8
        let range = width - side
        let step = Int(number % UInt64(range * 2 / 4 + 1)) * 4
        let left = step < range ? step : max(0, range * 2 - step)
        for row in height / 2..<height / 2 + side { memset(luma + row * line + left, 235, side) }
    }

    /// `000123 12:34:56.789`, in UTC.
    private func text(_ number: UInt64, _ milliseconds: UInt64) -> [UInt8] {
        func digits(_ value: UInt64, _ count: Int) -> [UInt8] {
            var (rest, result) = (value, [UInt8](repeating: 0, count: count))
            for index in (0..<count).reversed() {
                result[index] = UInt8(rest % 10)
                rest /= 10
            }
            return result
        }
        let seconds = milliseconds / 1000
        return digits(number, 6) + [Self.space] + digits(seconds / 3600 % 24, 2) + [Self.colon]
            + digits(seconds / 60 % 60, 2)
            + [Self.colon] + digits(seconds % 60, 2) + [Self.dot] + digits(milliseconds % 1000, 3)
    }

    private func draw(_ text: [UInt8], _ luma: UnsafeMutablePointer<UInt8>, _ line: Int) {
        // The dots are as large as the width allows: 19 characters of 6 dots, with a margin.
        let dot = max(1, min(scale, width / (text.count * 6 + 2)))
        let (left, top) = (dot * 2, height / 8)
        for row in top - min(dot, top)..<min(height, top + 8 * dot) {
            memset(luma + row * line + dot, 16, min(width - dot, (text.count * 6 + 1) * dot))
        }
        for (index, character) in text.enumerated() {
            for (row, bits) in Self.glyphs[Int(character)].enumerated() {
                for column in 0..<5 where bits >> (4 - column) & 1 == 1 {
                    let x = left + (index * 6 + column) * dot
                    guard x + dot <= width else { continue }
                    for y in 0..<dot where top + row * dot + y < height {
                        memset(luma + (top + row * dot + y) * line + x, 235, dot)
                    }
                }
            }
        }
    }

    private static let colon: UInt8 = 10
    private static let dot: UInt8 = 11
    private static let space: UInt8 = 12

    /// Seven rows of five dots for 0 to 9, colon, dot and space.
    private static let glyphs: [[UInt8]] = [
        [0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110],
        [0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110],
        [0b01110, 0b10001, 0b00001, 0b00110, 0b01000, 0b10000, 0b11111],
        [0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110],
        [0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010],
        [0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110],
        [0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110],
        [0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000],
        [0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110],
        [0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100],
        [0b00000, 0b00100, 0b00000, 0b00000, 0b00000, 0b00100, 0b00000],
        [0b00000, 0b00000, 0b00000, 0b00000, 0b00000, 0b00000, 0b00100],
        [0, 0, 0, 0, 0, 0, 0],
    ]
}

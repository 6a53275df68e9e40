extension String {
    /// The text that a C function wrote into a buffer, up to the terminating zero. Invalid UTF-8 is replaced.
    public init(nullTerminated characters: [CChar]) {
        self.init(decoding: characters.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}

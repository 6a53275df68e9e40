extension String {
    /// What a C function wrote into a buffer, up to the zero at its end; bytes that are no UTF-8 are replaced.
    public init(nullTerminated characters: [CChar]) {
        self.init(decoding: characters.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }
}
